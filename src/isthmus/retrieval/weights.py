"""How much each system of a hybrid should count, learnt from judged queries.

Every system searches once. All fusions are weighted sums of votes, so that all weights of a grid
are tried with one matrix product per query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt

from isthmus.errors import InputError, SettingsError
from isthmus.evaluation.measures import parse_measure, per_query
from isthmus.indexes.arrays import best
from isthmus.progress import track
from isthmus.records import Judgements, Query, Ranking, Run
from isthmus.retrieval.fusion import Fusion, fuse, fusions
from isthmus.retrieval.searcher import Searcher

Weights = tuple[float, ...]
_SEED = 0


@dataclass(frozen=True, slots=True)
class TunedWeights:
    """The best weights of a grid, what they measured, and every point that was tried.

    `held_out` is what to expect of new queries: each fold measured with the weights that were best
    on the others. `alone` is what each system measures by itself, `alike` all with one weight.
    """

    weights: Weights
    value: float
    held_out: float
    alone: Weights
    alike: float
    tried: tuple[tuple[Weights, float], ...]


def tune_weights(
    searcher: Searcher,
    queries: Sequence[Query],
    judgements: Judgements,
    measure: str = "RR@10",
    steps: int = 20,
    folds: int = 5,
) -> TunedWeights:
    """The weights, multiples of 1 / steps that add up to 1, under which an index measures best.

    Among equals those nearest to each other win: without evidence no system deserves more.
    """
    count = len(searcher.fields)
    fusion = fusions.load(searcher.fusion.fusion, where="fusion")
    asked = [query for query in queries if judgements.get(query.id)]
    _check(count, asked, steps)
    depth = parse_measure(measure).params.get("cutoff", searcher.fusion.candidates)
    found = searcher.components(asked, depth)
    answers = list(zip(*(found[name] for name in searcher.fields), strict=True))
    grid = np.array(list(_grid(count, steps))) / steps
    values = _measured(answers, grid, fusion, judgements, measure, depth)
    evenness = -((grid - 1 / count) ** 2).sum(axis=1)

    def choose(part: npt.NDArray[np.integer]) -> int:
        means = values[:, part].mean(axis=1)
        # Sums of the same numbers in another order differ in their last bits.
        return int(np.lexsort((evenness, means.round(12)))[-1])

    chosen = choose(np.arange(len(asked)))
    weights = tuple(grid[chosen].tolist())

    def value(of: Sequence[float]) -> float:
        fused = [fuse(rankings, of, fusion, depth) for rankings in answers]
        return fmean(_values(fused, judgements, measure))

    return TunedWeights(
        weights=weights,
        value=value(weights),
        held_out=_held_out(values, folds, choose),
        alone=tuple(value(row) for row in np.eye(count).tolist()),
        alike=value([1 / count] * count),
        tried=tuple(zip(map(tuple, grid.tolist()), values.mean(axis=1).tolist(), strict=True)),
    )


def _held_out(
    values: npt.NDArray[np.float64],
    folds: int,
    choose: Callable[[npt.NDArray[np.integer]], int],
) -> float:
    """The mean of all queries, each by the weights chosen without its fold; NaN for one query."""
    count = values.shape[1]
    if count < 2:
        return float("nan")
    fold = np.random.default_rng(_SEED).permutation(count) % min(folds, count)
    parts = [values[choose(np.flatnonzero(fold != f)), fold == f] for f in np.unique(fold)]
    return float(np.concatenate(parts).mean())


def _grid(systems: int, steps: int) -> Iterator[tuple[int, ...]]:
    """Every way to share out so many steps."""
    if systems == 1:
        yield (steps,)
        return
    for first in range(steps + 1):
        for rest in _grid(systems - 1, steps - first):
            yield (first, *rest)


def _measured(
    answers: Sequence[tuple[Ranking, ...]],
    grid: npt.NDArray[np.float64],
    fusion: Fusion,
    judgements: Judgements,
    measure: str,
    depth: int,
) -> npt.NDArray[np.float64]:
    """A row per point of the grid, a column per query."""
    fused: list[list[Ranking]] = [[] for _ in grid]
    for rankings in track(answers, "trying weights", len(answers), "queries"):
        query_id, ids, votes, given = _votes(rankings, fusion)
        # What only systems of weight 0 found is not part of the answer.
        known = (grid > 0).astype(float) @ given > 0
        for answer, scores, here in zip(fused, grid @ votes, known, strict=True):
            rows = np.flatnonzero(here)
            top = rows[best(scores[rows], rows, depth)]
            found = tuple(ids[row] for row in top)
            answer.append(Ranking(query_id, found, tuple(scores[top].tolist())))
    return np.array([_values(rankings, judgements, measure) for rankings in fused])


def _votes(
    rankings: Sequence[Ranking], fusion: Fusion
) -> tuple[str, list[str], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """All documents by id; a row per system of what it gives each; and which of them it found."""
    ids = sorted({document_id for ranking in rankings for document_id in ranking.document_ids})
    votes = np.zeros((len(rankings), len(ids)))
    given = np.zeros((len(rankings), len(ids)), dtype=np.bool_)
    for system, ranking in enumerate(rankings):
        if len(ranking):
            found, others = fusion(ranking)
            votes[system] = [found.get(document_id, others) for document_id in ids]
            given[system] = [document_id in found for document_id in ids]
    return rankings[0].query_id, ids, votes, given


def _values(rankings: Sequence[Ranking], judgements: Judgements, measure: str) -> list[float]:
    run = Run("tuning", {ranking.query_id: ranking for ranking in rankings})
    wanted = {ranking.query_id: judgements[ranking.query_id] for ranking in rankings}
    (values,) = per_query(run, wanted, [measure]).values()
    return list(values.values())


def _check(systems: int, asked: Sequence[Query], steps: int) -> None:
    if systems < 2 or steps < 1:
        raise SettingsError(
            f"weights in {steps} steps cannot be tuned for {systems} system(s)",
            "give an index of two or more fields, and one step or more",
        )
    if not asked:
        raise InputError(
            "--qrels: none of the queries is judged",
            "give the judgements of the collection and split that the queries belong to",
        )
