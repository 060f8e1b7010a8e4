"""The verb `isthmus search`: hits for one query, or a run file for many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import Field

from isthmus.collections import open_queries, write_run
from isthmus.collections.problems import ReadingSettings
from isthmus.collections.trec import check_ids, check_run_file, holds_run
from isthmus.config import Overrides
from isthmus.config.output import reserved
from isthmus.config.settings import check_arguments
from isthmus.errors import IsthmusError, SettingsError, choices
from isthmus.indexes.manifest import stated_manifest
from isthmus.progress import notice, waiting
from isthmus.records import Passage, Query, Ranking, Run
from isthmus.retrieval.hits import Hit, Hits
from isthmus.retrieval.hybrid import Retriever
from isthmus.retrieval.hybrid_folder import (
    Combination,
    RetrieverSettings,
    index_folder,
    is_hybrid,
    open_hybrid,
    read_hybrid,
)
from isthmus.retrieval.many_queries import answers, can_be_read, check_query
from isthmus.retrieval.reranker import RerankingSearcher, check_texts
from isthmus.retrieval.searcher import Unit, open_searcher
from isthmus.retrieval.snippets import snippets

_QUERIES_AT_ONCE = 256
_PAIRS_AT_ONCE = 4096


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
    k: int | None = None,
    use: str | None = None,
    rerank: str | None = None,
    settings: SearchSettings | Overrides = None,
) -> Hits:
    """The hits of one query."""
    settings = SearchSettings.given(settings, {"k": k, "use": use, "rerank.model": rerank})
    check_arguments("search", {"index": index, "query": query})
    return answer(open_retriever(index, settings), query, settings)


def search_file(
    index: str | Path,
    queries: str | Path,
    output: str | Path,
    *,
    k: int | None = None,
    split: str | None = None,
    use: str | None = None,
    rerank: str | None = None,
    settings: SearchSettings | Overrides = None,
) -> Path:
    """The run file written for a file of queries, or for the judged queries of a collection.

    A file that holds another run is refused and left as it is.
    """
    flags = {"k": k, "use": use, "rerank.model": rerank, "split": split}
    settings = SearchSettings.given(settings, flags)
    check_arguments("search", {"index": index, "queries": queries, "output": output})
    with reserved(Path(output)):
        return _search_many(index, queries, Path(output), settings)


def answers_to(
    index: str | Path,
    asked: Iterable[str],
    *,
    k: int | None = None,
    use: str | None = None,
    rerank: str | None = None,
    settings: SearchSettings | Overrides = None,
) -> Iterator[Hits]:
    """The hits of each query, or what is wrong with it; everything is loaded once.

    A query without words to search for (stop words alone, say) has no hits, and a notice.
    """
    settings = SearchSettings.given(settings, {"k": k, "use": use, "rerank.model": rerank})
    check_arguments("search", {"index": index})
    searcher = open_retriever(index, settings)
    return (_answered(searcher, query, settings) for query in asked)


def _answered(searcher: Retriever, query: str, settings: SearchSettings) -> Hits:
    try:
        return answer(searcher, query, settings, one_of_many=True)
    except IsthmusError as error:
        return Hits(query, error=error)


def answer(
    searcher: Retriever, query: str, settings: SearchSettings, one_of_many: bool = False
) -> Hits:
    """The hits of one query, from what is open already."""
    check_arguments("search", {"query": query})
    skips = one_of_many or settings.problems == "skip"
    if skips and not can_be_read(searcher, query):
        return Hits(query, notice=f"{query!r} has no words to search for")
    check_query(searcher, query)
    problems = settings.account()
    (ranking,) = searcher.search([Query("query", query)], settings.k or 10, problems)
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
    for found in answers(searcher, asked, settings.k or 1000, problems, at_once):
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


def open_retriever(index: str | Path, settings: SearchSettings) -> Retriever:
    """What answers queries from an index folder, fused and re-ranked as the settings say."""
    found = _retriever(index, settings)
    if settings.rerank is None:
        return found
    check_texts(found)
    with waiting(f"loading the re-ranker {settings.rerank.model}"):
        from isthmus.encoders import load_reranker  # brings torch, which BM25 does without

        scorer = load_reranker(settings.rerank.model, where="--rerank")
    return RerankingSearcher(found, scorer, settings.rerank.candidates)


def _retriever(index: str | Path, settings: SearchSettings) -> Retriever:
    folder = index_folder(index)
    if settings.use is not None:
        folder = _one_of(folder, settings.use)
    if not is_hybrid(folder):
        return open_searcher(folder, settings.model, settings.hnsw, settings.by)
    names = set(Combination.model_fields) & settings.model_fields_set
    changed = {name: getattr(settings, name) for name in names}
    return open_hybrid(folder, settings.hnsw, changed, settings.by, model=settings.model)


def retriever_names(folder: Path) -> list[str]:
    """The names of the retrievers in an index folder, as `use` takes them."""
    if is_hybrid(folder):
        return [member.index for member in read_hybrid(folder).members]
    return [stated_manifest(folder).kind]


def _one_of(folder: Path, name: str) -> Path:
    """The folder of the retriever of this name."""
    names = retriever_names(folder)
    if name not in names:
        raise SettingsError(
            f"the index {str(folder)!r} has no retriever {name!r}",
            "leave --use out to search all of them, or name one",
            choices(name, names),
        )
    hybrid = is_hybrid(folder)
    return read_hybrid(folder).folders(folder)[names.index(name)] if hybrid else folder


def hits(searcher: Retriever, ranking: Ranking, query: str) -> Hits:
    """The documents of a ranking, with titles and snippets; of long ones, the best passage."""
    documents = searcher.documents(ranking.document_ids, query)
    shown = snippets([document.text for document in documents], query)
    found = zip(ranking, documents, shown, strict=True)
    return Hits(
        query,
        (
            Hit(score, i, d.title, snippet, d if isinstance(d, Passage) else None, d.text)
            for (i, score), d, snippet in found
        ),
    )
