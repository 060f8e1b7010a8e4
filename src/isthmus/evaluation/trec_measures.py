"""trec_eval's most used measures in plain Python, for machines without a wheel of trec_eval.

pytrec_eval-terrier has none for Linux on ARM. ir_measures tries its own providers first, so this
one computes only what no other installed package does. Values equal trec_eval's to 1e-12.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ir_measures
from ir_measures import Measure, Metric, providers
from ir_measures.providers.base import NOT_PROVIDED
from ir_measures.util import QrelsConverter, RunConverter

Grades = Mapping[str, int]
_measures: Any = ir_measures.measures  # ir_measures declares no types for these
_base: Any = providers.base
_qrels: Any = QrelsConverter
_run: Any = RunConverter
_ANY = _base.Any()


class TrecMeasures(providers.Provider):
    """P, R, RR, AP, nDCG, Rprec, Success, SetP and SetR as trec_eval defines them."""

    NAME = "isthmus"
    SUPPORTED_MEASURES = [  # noqa: RUF012 # as ir_measures declares it
        _measures._P(cutoff=_ANY, rel=_ANY, judged_only=_ANY),
        _measures._R(cutoff=_ANY, rel=_ANY, judged_only=_ANY),
        _measures._RR(cutoff=_ANY, rel=_ANY, judged_only=_ANY),
        _measures._AP(cutoff=_ANY, rel=_ANY, judged_only=_ANY),
        _measures._nDCG(cutoff=_ANY, dcg=_base.Choices("log2"), gains=_ANY, judged_only=_ANY),
        _measures._Rprec(rel=_ANY, judged_only=_ANY),
        _measures._Success(cutoff=_ANY, rel=_ANY, judged_only=_ANY),
        _measures._SetP(rel=_ANY, relative=_base.Choices(False), judged_only=_ANY),
        _measures._SetR(rel=_ANY),
    ]

    def _evaluator(self, measures: Any, qrels: Any) -> providers.Evaluator:
        return _Evaluator(list(measures), _qrels(qrels).as_dict_of_dict())


class _Evaluator(providers.Evaluator):
    def __init__(self, measures: list[Measure], judged: dict[str, dict[str, int]]) -> None:
        super().__init__(measures, set(judged))
        self._judged = judged

    def _iter_calc(self, run: Any) -> Iterator[Metric]:
        for query, scores in _run(run).as_dict_of_dict().items():
            if query not in self._judged:
                continue
            grades = self._judged[query]
            # trec_eval puts the later id first among equal scores.
            ranked = sorted(scores, key=lambda one: (scores[one], one), reverse=True)
            for measure in self.measures:
                yield Metric(query_id=query, measure=measure, value=value(measure, ranked, grades))


def value(measure: Measure, ranked: Sequence[str], grades: Grades) -> float:
    """The measure of one ranking, best document first, under the judged documents' grades."""
    name, supported = str(measure.NAME), measure.SUPPORTED_PARAMS
    if "judged_only" in supported and measure["judged_only"]:
        ranked = [document for document in ranked if document in grades]
    cutoff: Any = measure["cutoff"] if "cutoff" in supported else NOT_PROVIDED
    top = list(ranked if cutoff is NOT_PROVIDED else ranked[:cutoff])
    if name == "nDCG":
        return _ndcg(top, grades, cutoff, measure["gains"])
    level = measure["rel"]
    relevant = {document for document, grade in grades.items() if grade >= level}
    if name == "Rprec":
        top = top[: len(relevant)]
    ranks = [rank for rank, document in enumerate(top, start=1) if document in relevant]
    if name in ("RR", "Success"):
        return (1 / ranks[0] if name == "RR" else 1.0) if ranks else 0.0
    if name == "AP":
        precisions = sum(found / rank for found, rank in enumerate(ranks, start=1))
        return precisions / len(relevant) if relevant else 0.0
    of: Any = {"P": cutoff, "SetP": len(top)}.get(name, len(relevant))
    return len(ranks) / of if of else 0.0


def _ndcg(top: Sequence[str], grades: Grades, cutoff: Any, gains: Any) -> float:
    changed = {} if gains is NOT_PROVIDED else gains
    gain = {document: max(changed.get(grade, grade), 0) for document, grade in grades.items()}
    ideal = sorted(gain.values(), reverse=True)
    best = _discounted(ideal if cutoff is NOT_PROVIDED else ideal[:cutoff])
    return _discounted([gain.get(document, 0) for document in top]) / best if best else 0.0


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
