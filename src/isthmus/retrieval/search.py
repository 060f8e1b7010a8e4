"""Searching an index: hits for one query, or a run file for many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from isthmus.collections import open_queries, write_run
from isthmus.collections.problems import ReadingSettings
from isthmus.collections.trec import check_ids, check_run_file, holds_run
from isthmus.config import Overrides, Settings
from isthmus.config.output import reserved
from isthmus.config.settings import check_arguments
from isthmus.errors import IsthmusError
from isthmus.indexes.filters import Filter, parse, parse_options
from isthmus.indexes.index import Unit
from isthmus.progress import notice, waiting
from isthmus.records import Passage, Query, Ranking, Run
from isthmus.retrieval.hits import Hit, Hits
from isthmus.retrieval.many_queries import answers, can_be_read, check_query, without_words
from isthmus.retrieval.reranker import RerankingSearcher, RerankSettings
from isthmus.retrieval.searcher import Retriever, open_searcher
from isthmus.retrieval.snippets import snippets

Filters = Mapping[str, Any] | Sequence[str] | None
"""A filter as a mapping, or as what is typed: `year>=2020`."""
_QUERIES_AT_ONCE = 256
_PAIRS_AT_ONCE = 4096


class RetrieverSettings(Settings):
    """Which fields answer, with which encoder, how they are fused, and a re-ranker."""

    use: str | None = Field(
        None, description="name of the one field that answers; null: all of them, fused"
    )
    fusion: str | None = Field(
        None,
        description="weighted_sum, reciprocal_rank or raw_sum; null: as the index was tuned",
    )
    candidates: int | None = Field(
        None, ge=1, description="documents per query and field that are fused; null: 1000"
    )
    compared: int | None = Field(
        None, ge=1, description="documents per query that token vectors score; null: 30"
    )
    weights: dict[str, float] | None = Field(
        None, description="weights of fields, by name; null: as the index was tuned"
    )
    model: str | None = Field(
        None,
        description="path of the encoder, if it is not where the index was built, or to allow one "
        "that this machine has not used before",
    )
    hnsw: bool = Field(
        False,
        description="search dense vectors by the graph that was built with them, which may miss "
        "documents",
    )
    rerank: RerankSettings | None = Field(
        None, description="a cross-encoder that reads the best once more"
    )

    @property
    def fused(self) -> dict[str, Any]:
        """What these settings say of fusion otherwise than the index."""
        names = ("fusion", "candidates", "compared", "weights")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


class SearchSettings(RetrieverSettings, ReadingSettings):
    """How deep to search, with what, and what to do with queries that cannot be searched for."""

    verb = "search"

    k: int | None = Field(
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


def search(
    index: str | Path,
    query: str,
    *,
    filter: Filters = None,  # noqa: A002 (the word that users know)
    settings: SearchSettings | Overrides = None,
    **flags: Any,
) -> Hits:
    """The hits of one query."""
    settings = SearchSettings.given(settings, flags)
    check_arguments("search", {"index": index, "query": query})
    if not query.strip() and settings.problems != "skip":  # before an encoder is loaded
        raise without_words(query)
    chosen = filter_of(filter)
    return answer(open_retriever(index, settings), query, settings, chosen)


def search_file(
    index: str | Path,
    queries: str | Path,
    output: str | Path,
    *,
    filter: Filters = None,  # noqa: A002 (the word that users know)
    settings: SearchSettings | Overrides = None,
    **flags: Any,
) -> Path:
    """The run file written for a file of queries, or for the judged queries of a collection.

    A file that holds another run is refused and left as it is.
    """
    settings = SearchSettings.given(settings, flags)
    check_arguments("search", {"index": index, "queries": queries, "output": output})
    with reserved(Path(output)):
        return _search_many(index, queries, Path(output), settings, filter_of(filter))


def answers_to(
    index: str | Path,
    asked: Iterable[str],
    *,
    filter: Filters = None,  # noqa: A002 (the word that users know)
    settings: SearchSettings | Overrides = None,
    **flags: Any,
) -> Iterator[Hits]:
    """The hits of each query, or what is wrong with it; everything is loaded once.

    A query without words to search for (stop words alone, say) has no hits, and a notice.
    """
    settings = SearchSettings.given(settings, flags)
    check_arguments("search", {"index": index})
    searcher, chosen = open_retriever(index, settings), filter_of(filter)
    return (_answered(searcher, query, settings, chosen) for query in asked)


def filter_of(given: Filters) -> Filter | None:
    """The filter that a mapping or typed options spell; None for none."""
    if not given:
        return None
    return parse(given if isinstance(given, Mapping) else parse_options(given))


def _answered(
    searcher: Retriever, query: str, settings: SearchSettings, chosen: Filter | None
) -> Hits:
    try:
        return answer(searcher, query, settings, chosen, one_of_many=True)
    except IsthmusError as error:
        return Hits(query, error=error)


def answer(
    searcher: Retriever,
    query: str,
    settings: SearchSettings,
    chosen: Filter | None = None,
    one_of_many: bool = False,
) -> Hits:
    """The hits of one query, from what is open already."""
    check_arguments("search", {"query": query})
    skips = one_of_many or settings.problems == "skip"
    if skips and not can_be_read(searcher, query):
        return Hits(query, notice=f"{query!r} has no words to search for")
    check_query(searcher, query)
    problems = settings.account()
    (ranking,) = searcher.search([Query("query", query)], settings.k or 10, problems, chosen)
    return hits(searcher, ranking, query)


def _search_many(
    index: str | Path,
    queries: str | Path,
    run: Path,
    settings: SearchSettings,
    chosen: Filter | None,
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
    for found in answers(searcher, asked, settings.k or 1000, problems, at_once, chosen):
        for ranking in found:
            check_ids(ranking)
            rankings[ranking.query_id] = ranking
        if len(rankings) == len(found):  # another run there is refused before all are searched
            holds_run(run, Run(tag, rankings), complete=False)
    if holds_run(run, Run(tag, rankings)):
        notice(f"{run} already holds this run; nothing to do")
    else:
        write_run(run, Run(tag, rankings))
    if problems.counts:
        notice(problems.summary())
    return run


def open_retriever(
    index: str | Path, settings: RetrieverSettings, by: Unit = "document"
) -> Retriever:
    """What answers queries from an index folder, fused and re-ranked as the settings say."""
    by = getattr(settings, "by", by)
    found = open_searcher(index, settings.use, settings.model, settings.hnsw, by, settings.fused)
    if settings.rerank is None:
        return found
    with waiting(f"loading the re-ranker {settings.rerank.model}"):
        from isthmus.encoders import load_reranker  # brings torch, which BM25 does without

        scorer = load_reranker(settings.rerank.model, where="--rerank")
    return RerankingSearcher(found, scorer, settings.rerank.candidates)


def hits(searcher: Retriever, ranking: Ranking, query: str) -> Hits:
    """The documents of a ranking, with titles and snippets; of long ones, the best passage."""
    documents = searcher.documents(ranking.document_ids, query)
    matched = searcher.matched(query, documents)
    shown = snippets([document.text for document in documents], query, matched)
    found = zip(ranking, documents, shown, strict=True)
    return Hits(
        query,
        (
            Hit(
                score,
                i,
                d.title,
                snippet.text,
                d if isinstance(d, Passage) else None,
                d.text,
                dict(d.metadata),
                snippet.highlights,
            )
            for (i, score), d, snippet in found
        ),
    )
