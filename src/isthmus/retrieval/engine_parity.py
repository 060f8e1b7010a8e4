"""`isthmus export --verify`: the same queries to Milvus and to the index it was filled from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from isthmus.collections import Problems, read_queries
from isthmus.config.output import whole_file
from isthmus.errors import InputError, MismatchError
from isthmus.indexes.inverted.quantisation import searched
from isthmus.indexes.kinds import FIELDS
from isthmus.indexes.manifest import TITLES
from isthmus.indexes.milvus import Milvus
from isthmus.progress import Bar
from isthmus.records import Query, Ranking
from isthmus.retrieval.passage_cutter import unit_of
from isthmus.retrieval.searcher import Searcher, open_searcher, usable

_QUERIES_AT_ONCE = 256
_ROUNDING = 1e-5  # of a query's highest score: Milvus adds in float32


@dataclass(frozen=True, slots=True)
class Comparison:
    """How far Milvus's ranking for one query is from that of the index."""

    query: str
    overlap: float
    """Share of the index's documents that Milvus found."""
    same_order: bool
    same_but_for_ties: bool
    """Scores are equal at every rank; documents differ only among equal scores."""
    rank_difference: int
    """Largest difference of ranks, over documents that both found."""
    score_difference: float
    """Largest difference of scores over them, relative to the index's highest score."""


@dataclass(frozen=True, slots=True)
class Parity:
    """The comparisons of all queries, to one depth."""

    depth: int
    comparisons: tuple[Comparison, ...]

    @property
    def exact(self) -> bool:
        """Whether every query has the same answer, but for the order of equal scores."""
        return all(one.same_but_for_ties for one in self.comparisons)

    def table(self) -> Table:
        """A summary over all queries, for a terminal."""
        found = self.comparisons
        table = Table(f"{len(found):,} queries, depth {self.depth:,}", "")
        table.add_row("overlap, mean", f"{fmean(one.overlap for one in found):.4f}")
        table.add_row("overlap, least", f"{min(one.overlap for one in found):.4f}")
        table.add_row("same documents in the same order", _share(o.same_order for o in found))
        table.add_row("the same but for ties", _share(o.same_but_for_ties for o in found))
        table.add_row("largest rank difference", str(max(o.rank_difference for o in found)))
        largest = max(one.score_difference for one in found)
        table.add_row("largest score difference", f"{largest:.1e} of the highest")
        return table

    def write(self, file: Path) -> None:
        """Writes one line per query, its values separated by tabs."""
        with whole_file(file) as stream:
            stream.write("\t".join(field.name for field in fields(Comparison)) + "\n")
            for one in self.comparisons:
                stream.write("\t".join(map(str, astuple(one))) + "\n")


def parity(
    index: str | Path,
    milvus: Milvus,
    queries: str | Path,
    depth: int,
    model: str | None,
    problems: Problems,
) -> Parity:
    """How far the answers of a Milvus are from those of the index it was filled from.

    `model` is the encoder of the index, if that moved.
    """
    asked = read_queries(queries, problems)
    searcher = open_searcher(index, model, by=unit_of(Path(index)))
    kind = searcher.index.manifest.kind
    if (field := FIELDS.get(kind)) is None:
        raise InputError(
            f"{str(index)!r} is {TITLES[kind]}, which is not exported",
            "give the dense or inverted index that was exported",
        )
    asked = usable(asked, searcher.has_tokens, depth, problems)
    if not asked:
        raise InputError(
            f"{queries} has no query to ask",
            "check the file of queries",
        )
    _check_encoder(searcher, milvus, field)
    found: list[Comparison] = []
    with Bar("comparing", len(asked), "queries") as bar:
        for first in range(0, len(asked), _QUERIES_AT_ONCE):
            batch = asked[first : first + _QUERIES_AT_ONCE]
            found += _compare(searcher, milvus, field, batch, depth)
            bar.advance(len(batch))
    return Parity(depth, tuple(found))


def compare(ours: Ranking, theirs: Ranking) -> Comparison:
    """How far one ranking is from another that should be the same."""
    ranks, scores = {d: r for r, d in enumerate(theirs.document_ids)}, dict(theirs)
    both = [(rank, d, s) for rank, (d, s) in enumerate(ours) if d in scores]
    highest = max((abs(score) for score in ours.scores), default=0.0) or 1.0
    difference = max((abs(scores[d] - s) for _, d, s in both), default=0.0) / highest
    by_rank = zip(ours.scores, theirs.scores, strict=False)
    alike = all(abs(one - two) <= _ROUNDING * highest for one, two in by_rank)
    return Comparison(
        ours.query_id,
        overlap=len(both) / len(ours) if len(ours) else float(not len(theirs)),
        same_order=ours.document_ids == theirs.document_ids,
        same_but_for_ties=alike and len(ours) == len(theirs) and difference <= _ROUNDING,
        rank_difference=max((abs(ranks[d] - rank) for rank, d, _ in both), default=0),
        score_difference=difference,
    )


def _compare(
    searcher: Searcher, milvus: Milvus, field: str, batch: Sequence[Query], depth: int
) -> list[Comparison]:
    assert searcher.encoder is not None
    ids = [query.id for query in batch]
    vectors = searcher.encoder.encode_queries([query.text for query in batch])
    ours = searcher.index.search(vectors, depth, ids)
    manifest = searcher.index.manifest
    if manifest.inverted is not None:  # whole numbers, if the index has those
        assert manifest.dimension is not None
        names = [f"query {query_id!r}" for query_id in ids]
        vectors = searched(vectors, manifest.inverted, manifest.dimension, names)
    theirs = milvus.search(field, vectors, depth, ids)
    return [compare(one, two) for one, two in zip(ours, theirs, strict=True)]


def _check_encoder(searcher: Searcher, milvus: Milvus, field: str) -> None:
    expected = searcher.index.manifest.encoder_fingerprint
    if (found := milvus.encoders().get(field)) != expected:
        held = f"{field} vectors of the encoder {found}" if found else f"no {field} vectors"
        raise MismatchError(
            f"the collection of Milvus at {milvus.place} holds {held}, the index those of "
            f"{expected}",
            "export the index again, or name the one that was exported",
        )


def _share(answers: Any) -> str:
    found = list(answers)
    return f"{sum(found):,} of {len(found):,}"
