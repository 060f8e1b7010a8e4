"""The verb `isthmus search`: hits for one query, or a run file for many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import overload

from pydantic import Field

from isthmus.collections import open_queries, write_run
from isthmus.collections.problems import ReadingSettings
from isthmus.collections.trec import check_ids, check_run_file, holds_run
from isthmus.config import Overrides
from isthmus.config.output import reserved
from isthmus.config.settings import check_arguments, several
from isthmus.errors import SettingsError
from isthmus.progress import notice, waiting
from isthmus.records import Passage, Query, Ranking, Run
from isthmus.retrieval.hits import Hit, Hits
from isthmus.retrieval.hybrid import Retriever
from isthmus.retrieval.hybrid_folder import (
    Combination,
    RetrieverSettings,
    is_hybrid,
    is_living,
    open_hybrid,
    open_together,
)
from isthmus.retrieval.many_queries import answers, can_be_read, check_query
from isthmus.retrieval.reranker import RerankingSearcher, check_texts
from isthmus.retrieval.searcher import Unit
from isthmus.retrieval.snippets import snippets

_QUERIES_AT_ONCE = 1024
_PAIRS_AT_ONCE = 4096


class SearchSettings(RetrieverSettings, ReadingSettings):
    """How deep to search, with what, and what to do with queries that cannot be searched for."""

    verb = "search"

    depth: int | None = Field(
        None, ge=1, description="documents per query; null: 10 for one query, 1000 for a run file"
    )
    by: Unit = Field(
        "document",
        description="what is ranked, of an index of passages: documents, each as its best passage, "
        "or passages, with ids DOCUMENT#NUMBER",
    )
    split: str | None = Field(
        None,
        description="whose queries, where they are a collection's; null: test, or the only one",
    )
    tag: str | None = Field(
        None, pattern=r"^\S+$", description="the name of the run; null: that of its file"
    )


@overload
def search(
    index: str | Path,
    query: str,
    queries: None = None,
    run: None = None,
    *,
    hybrid: Iterable[str | Path] | str | Path = (),
    rerank: str | None = None,
    model: str | None = None,
    depth: int | None = None,
    split: str | None = None,
    settings: SearchSettings | Overrides = None,
) -> Hits: ...


@overload
def search(
    index: str | Path,
    query: str | None = None,
    queries: str | Path | None = None,
    run: str | Path | None = None,
    *,
    hybrid: Iterable[str | Path] | str | Path = (),
    rerank: str | None = None,
    model: str | None = None,
    depth: int | None = None,
    split: str | None = None,
    settings: SearchSettings | Overrides = None,
) -> Hits | Path: ...


def search(
    index: str | Path,
    query: str | None = None,
    queries: str | Path | None = None,
    run: str | Path | None = None,
    *,
    hybrid: Iterable[str | Path] | str | Path = (),
    rerank: str | None = None,
    model: str | None = None,
    depth: int | None = None,
    split: str | None = None,
    settings: SearchSettings | Overrides = None,
) -> Hits | Path:
    """The hits of one query, or the run file written for many queries.

    Those are of a file, or of a collection the judged ones of `split`: `test`, or the only one.
    A file that holds another run is refused and left as it is.
    """
    flags = {
        "depth": depth,
        "hybrid": several(hybrid) or None,
        "model": model,
        "rerank.model": rerank,
        "split": split,
    }
    settings = SearchSettings.given(settings, flags)
    if (query is None) == (queries is None) or (queries is None) != (run is None):
        raise SettingsError(
            "isthmus search takes one query, or --queries and --run: a file or collection of "
            "queries, and the run file to write",
            'isthmus search INDEX "a query", or isthmus search INDEX --queries FILE|COLLECTION '
            "--run FILE",
        )
    optional = {"query": query, "queries": queries, "run": run}
    check_arguments("search", {"index": index}, optional)
    if query is not None and settings.split is not None:
        raise SettingsError(
            f"--split {settings.split} has no effect on one query: it is for --queries",
            "leave it out",
        )
    if query is not None:
        return _answer(open_retriever(index, settings), query, settings)
    assert queries is not None
    assert run is not None
    with reserved(Path(run)):
        return _search_many(index, queries, Path(run), settings)


def open_search(
    index: str | Path,
    *,
    hybrid: Iterable[str | Path] | str | Path = (),
    rerank: str | None = None,
    model: str | None = None,
    depth: int | None = None,
    settings: SearchSettings | Overrides = None,
) -> Callable[[str], Hits]:
    """A function from a query to its hits; everything is loaded once, here.

    A query without words to search for (stop words alone, say) has no hits, and a notice.
    """
    flags = {
        "depth": depth,
        "hybrid": several(hybrid) or None,
        "model": model,
        "rerank.model": rerank,
    }
    settings = SearchSettings.given(settings, flags)
    check_arguments("open_search", {"index": index})
    return partial(_answer, open_retriever(index, settings), settings=settings, one_of_many=True)


def _answer(
    searcher: Retriever, query: str, settings: SearchSettings, one_of_many: bool = False
) -> Hits:
    check_arguments("search", {"query": query})
    skips = one_of_many or settings.problems == "skip"
    if skips and not can_be_read(searcher, query):
        return Hits(query, notice=f"{query!r} has no words to search for")
    check_query(searcher, query)
    problems = settings.account()
    (ranking,) = searcher.search([Query("query", query)], settings.depth or 10, problems)
    return hits(searcher, ranking, query)


def _search_many(
    index: str | Path, queries: str | Path, run: Path, settings: SearchSettings
) -> Path:
    tag = settings.tag or run.stem
    check_run_file(run)
    problems = settings.account()
    asked = open_queries(queries, settings.split, problems)
    searcher = open_retriever(index, settings)
    rankings: dict[str, Ranking] = {}
    at_once = _QUERIES_AT_ONCE
    if settings.rerank is not None:  # slow: smaller batches, so that the bar moves
        at_once = max(1, _PAIRS_AT_ONCE // settings.rerank.candidates)
    for found in answers(searcher, asked, settings.depth or 1000, problems, at_once):
        for ranking in found:
            check_ids(ranking)
            rankings[ranking.query_id] = ranking
    if holds_run(run, Run(tag, rankings)):
        notice(f"{run} already holds this run; nothing to do")
    else:
        write_run(run, Run(tag, rankings))
    if problems.counts:
        notice(problems.summary())
    return run


def open_retriever(index: str | Path, settings: SearchSettings) -> Retriever:
    """What answers queries from an index folder, fused and re-ranked as the settings say."""
    found = _retriever(index, settings)
    if settings.rerank is None:
        return found
    check_texts(found)
    with waiting(f"loading the re-ranker {settings.rerank.model}"):
        from isthmus.encoders import load_cross_encoder  # brings torch, which BM25 does without

        scorer = load_cross_encoder(settings.rerank.model, where="--rerank")
    return RerankingSearcher(found, scorer, settings.rerank.candidates)


def _retriever(index: str | Path, settings: SearchSettings) -> Retriever:
    if is_hybrid(index):
        changed = {
            name: getattr(settings, name) for name in _refuse_second_opinion(index, settings)
        }
        return open_hybrid(index, settings.hnsw, changed, settings.by)
    indexes = [index, *settings.hybrid]
    searchers = open_together(indexes, settings.model, settings.hnsw, settings.by)
    return settings.searcher(searchers) if settings.hybrid else searchers[0]


def _refuse_second_opinion(index: str | Path, settings: SearchSettings) -> set[str]:
    """The settings of fusion that are given anew, which only weights that were tuned refuse."""
    fused = set(Combination.model_fields) & settings.model_fields_set
    decided = {"hybrid", "model"} & settings.model_fields_set
    tuned = "" if is_living(index) else "tuned "
    if tuned:
        decided |= fused
    if decided:
        raise SettingsError(
            f"{min(decided)} has no effect: {str(index)!r} already stores its "
            f"{tuned}{min(decided)}",
            "leave it out, or search its indexes: INDEX --with INDEX",
        )
    return fused


def hits(searcher: Retriever, ranking: Ranking, query: str) -> Hits:
    """The documents of a ranking, with titles and snippets; of long ones, the best passage."""
    documents = searcher.documents(ranking.document_ids, query)
    shown = snippets([document.text for document in documents], query)
    found = zip(ranking, documents, shown, strict=True)
    return Hits(
        query,
        (
            Hit(score, i, d.title, text, d if isinstance(d, Passage) else None)
            for (i, score), d, text in found
        ),
    )
