"""The comparisons that a claim stands for, and what of each the cells can answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from isthmus.benchmarks.protocol.claims import Claim, Selection
from isthmus.benchmarks.protocol.settings import Protocol
from isthmus.benchmarks.report.comparisons import Term, with_common_runs
from isthmus.benchmarks.report.outcomes import Column, Outcomes

_Runs = Mapping[str, frozenset[tuple[int, int]]]  # by start: pairs of seeds


def places(claim: Claim, protocol: Protocol) -> Iterator[tuple[str, list[Term]]]:
    """The comparisons that a claim stands for, each with a name.

    One for every kind, task and collection that both sides name; where the sides differ (more
    queries on one, another kind on the other), each side is averaged over its own.
    """
    measure = claim.measure or protocol.measures[0]
    higher, lower = (spelt_out(side, protocol) for side in (claim.higher, claim.lower))
    shared = [one if one == other else [None] for one, other in zip(higher, lower, strict=True)]
    for chosen in product(*shared):
        terms: list[Term] = []
        for sign, side, names in ((1.0, claim.higher, higher), (-1.0, claim.lower, lower)):
            inner = [
                [one] if one is not None else own for one, own in zip(chosen, names, strict=True)
            ]
            columns = [
                Column(kind, task, collection or protocol.tasks[task].collection, measure)
                for kind, task, collection in product(*inner)
                if kind in protocol.kinds_of(task)
            ]
            terms += _side(sign, side, columns, protocol)
        if terms and {term.weight > 0 for term in terms} == {True, False}:
            yield ", ".join(name for name in chosen if name) or "all", terms


def spelt_out(side: Selection, protocol: Protocol) -> tuple[list[str], list[str], list[str]]:
    """The kinds, tasks and collections that a side means; "" for the tasks' own collections."""
    tuned = [name for name, task in protocol.tasks.items() if task.finetune]
    return side.kinds or list(protocol.kinds), side.tasks or tuned, side.collections or [""]


def _side(
    sign: float, side: Selection, columns: Sequence[Column], protocol: Protocol
) -> list[Term]:
    terms = []
    for column in columns:
        run = protocol.tasks[column.task].starts or protocol.starts
        for weight, names in ((sign, side.starts), (-sign, side.over)):
            planned = [name for name in names if name in run]
            terms += [
                Term(weight / len(planned) / len(columns), name, column, (sign, weight))
                for name in planned
            ]
    return terms


def scored(terms: Sequence[Term], outcomes: Outcomes) -> tuple[list[Term] | None, tuple[str, ...]]:
    """The terms of starts with enough runs, reweighted to the sum of all; the starts left out.

    A start is left out on both sides, so that both average over the same starts. Where a whole
    side has no scores there are no terms at all (None); where the starts have no run in common,
    an empty list.
    """
    runs: dict[str, frozenset[tuple[int, int]]] = {}
    for term in terms:
        scores = outcomes.scores(term.start, term.column)
        here = frozenset() if scores is None else scores.runs
        runs[term.start] = here & runs.get(term.start, here)
    whole = _weights(terms)
    lacking = {start for start, pairs in runs.items() if not pairs}
    lacking |= _too_few(terms, {one: runs[one] for one in runs.keys() - lacking}, lacking)
    there, missing = _without(terms, lacking), tuple(sorted(lacking))
    left = _weights(there)
    if whole.keys() != left.keys():
        return None, missing
    kept = [
        replace(term, weight=term.weight * whole[_part(term)] / left[_part(term)]) for term in there
    ]
    return with_common_runs(outcomes, kept), missing


def _too_few(terms: Sequence[Term], runs: _Runs, lacking: set[str]) -> set[str]:
    """The starts of the fewest runs, without which the others share two pre-training seeds.

    None where nothing helps, or where a part of the comparison would be lost.
    """
    parts = _weights(terms).keys()
    out: set[str] = set()
    for start in sorted(runs, key=lambda one: (len(runs[one]), one)):
        if _shares_seeds(runs, out):
            break
        if _weights(_without(terms, lacking | out | {start})).keys() == parts:
            out.add(start)
    return out if _shares_seeds(runs, out) else set()


def _shares_seeds(runs: _Runs, out: set[str]) -> bool:
    left = [runs[start] for start in runs.keys() - out]
    return bool(left) and len({seed for seed, _ in frozenset.intersection(*left)}) > 1


def _without(terms: Sequence[Term], starts: set[str]) -> list[Term]:
    return [term for term in terms if term.start not in starts]


def _part(term: Term) -> tuple[Column, tuple[float, float]]:
    """What of a comparison a term is an equal share of: the others take over from a missing one."""
    return term.column, term.part


def _weights(terms: Sequence[Term]) -> dict[tuple[Column, tuple[float, float]], float]:
    sums: dict[tuple[Column, tuple[float, float]], float] = {}
    for term in terms:
        sums[_part(term)] = sums.get(_part(term), 0.0) + term.weight
    return sums


def lacks_runs(term: Term, outcomes: Outcomes) -> bool:
    """Whether planned runs of a start that has some are not done."""
    scores = outcomes.scores(term.start, replace(term.column, runs=None))
    return scores is not None and len(scores.runs) < outcomes.planned_runs(term.column.task)
