"""What files of rankings have in common: whose queries and documents they must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from isthmus.errors import MismatchError
from isthmus.finetuning.mining.candidates import CorpusIds
from isthmus.records import Query, Ranking

Report = Callable[[str], None]


def known_rankings(
    found: Mapping[str, Ranking],
    queries: Sequence[Query],
    corpus: CorpusIds,
    file: str,
    report: Report,
    kind: str = "run file",
) -> list[Ranking]:
    """The rankings of these queries, without documents that the corpus does not have.

    Raises where they are those of other queries or documents altogether.
    """
    given = [found.get(query.id, Ranking(query.id)) for query in queries]
    _check_queries(given, file, report, kind)
    return _known(given, corpus, file, report, kind)


def _check_queries(rankings: Sequence[Ranking], file: str, report: Report, kind: str) -> None:
    without = sum(not len(ranking) for ranking in rankings)
    if without == len(rankings):
        raise MismatchError(
            f"the {kind} ranks documents for none of the {without:,} training queries",
            where=file,
            allowed="rankings of the queries that are trained on",
            remedy="search with the training split's queries: isthmus search INDEX --queries …",
        )
    if without:
        report(f"{file}: {without:,} of {len(rankings):,} training queries have no ranking there")


def _known(
    rankings: Sequence[Ranking], corpus: CorpusIds, file: str, report: Report, kind: str
) -> list[Ranking]:
    """The rankings without unknown documents, which are an error unless problems are skipped."""
    documents, skip = corpus.rows, corpus.reading.problems == "skip"
    kept, unknown, total = [], [], 0
    for ranking in rankings:
        known = [(found, score) for found, score in ranking if found in documents]
        if len(known) < len(ranking):
            unknown += [found for found, _ in ranking if found not in documents]
        total += len(ranking)
        ids, scores = tuple(found for found, _ in known), tuple(score for _, score in known)
        kept.append(Ranking(ranking.query_id, ids, scores))
    if unknown:
        message = (
            f"{len(unknown):,} of the {total:,} documents ranked for training queries are not "
        )
        message += f"in the corpus, {unknown[0]!r} for example"
        if not skip or len(unknown) == total:
            raise MismatchError(
                f"a {kind} from another corpus: {message}",
                where=file,
                allowed="ids of documents in the corpus",
                remedy="give rankings of this collection's documents"
                + ("" if skip else "; or leave the others out: --set problems=skip"),
            )
        report(f"{file}: {message}; they are left out")
    return kept
