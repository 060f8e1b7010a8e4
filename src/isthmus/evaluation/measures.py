"""Measures by their names in ir_measures, computed per query as trec_eval defines them.

`nDCG@10`, `RR@10`, `R@100`, `Success@20`, `AP`, `P@10`, `Rprec`, `SetP`, `SetR`, `Judged@10`,
`RR(rel=2)@10`; aliases too (`MRR@10` is read and printed as `RR@10`, `MAP` as `AP`). Two are ours:
`R_cap@k`, the recall of LexMAE eq. 14, and `Answer@k`, which `answers.py` counts.

Which queries count: every query with at least one judgement, as in `trec_eval -c`. A query
without results scores 0, and so does a query whose judgements are all 0: trec_eval evaluates it
too. Queries of the run without judgements are left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import ir_measures
from ir_measures import Measure
from ir_measures.measures import ParamInfo, register, registry
from ir_measures.providers.base import NOT_PROVIDED

from isthmus.errors import InputError, SettingsError, nearest, shown
from isthmus.records import Judgements, Ranking, Run

Grades = Mapping[str, int]
_COMPUTED = (
    "AP", "Judged", "P", "R", "RR", "R_cap", "Rprec", "SetP", "SetR", "Success", "nDCG",
)  # fmt: skip
_FIXED = {"dcg": "log2", "relative": False}  # of what ir_measures knows in several forms


class AnswerAccuracy(Measure):
    """Whether one of the top k texts holds an answer string: DPR's top-k accuracy."""

    NAME = __name__ = "Answer"
    SUPPORTED_PARAMS: dict[str, ParamInfo] = {  # noqa: RUF012 (as in ir_measures)
        "cutoff": ir_measures.R.SUPPORTED_PARAMS["cutoff"]
    }


class CappedRecall(Measure):
    """Recall that 1.0 can always reach: found in the top k / min(k, relevant), LexMAE eq. 14."""

    NAME = __name__ = "R_cap"
    SUPPORTED_PARAMS: dict[str, ParamInfo] = ir_measures.R.SUPPORTED_PARAMS


if CappedRecall.NAME not in registry:
    register(CappedRecall())  # type: ignore[no-untyped-call]
    register(AnswerAccuracy())  # type: ignore[no-untyped-call]


def parse_measure(name: str, where: str = "measures", answers: bool = False) -> Measure:
    """The measure of this name, refused before any file is read when nothing can compute it.

    `answers`: whether answer strings may be at hand, which `Answer@k` counts.
    """
    try:
        measure = ir_measures.parse_measure(name)
    except NameError:
        raise _unknown(name, where) from None
    except Exception:  # the name is parsed as Python, which refuses in many ways
        raise SettingsError(
            f"{where}: {shown(name)} is not the name of a measure",
            "write NAME, NAME@CUTOFF or NAME(SETTING=VALUE)@CUTOFF, as in RR(rel=2)@10",
        ) from None
    problem = _problem(measure)
    if problem:
        raise SettingsError(
            f"{where}: {name!r} cannot be computed: {problem}",
            f"write it as {_form(measure)}; a cutoff is a whole number from 1 on",
        )
    if isinstance(measure, AnswerAccuracy):
        if answers:
            return measure
        raise SettingsError(
            f"{where}: {name!r} counts answer strings, which only `evaluate` and benchmarks know",
            "choose a measure of judged documents, such as Success@20",
            ", ".join(_COMPUTED),
        )
    others = [name for name, value in _FIXED.items() if measure.params.get(name, value) != value]
    if str(measure.NAME) not in _COMPUTED or others:
        raise SettingsError(
            f"{where}: {name!r} is not computed here"
            + "".join(f": {other} is fixed" for other in others),
            "choose another measure",
            ", ".join(_COMPUTED),
        )
    return measure


def per_query(
    run: Run, judgements: Judgements, measures: Sequence[str]
) -> dict[str, dict[str, float]]:
    """The value of every judged query by the measure's printed name, in the judgements' order."""
    wanted = {str(measure): measure for measure in map(parse_measure, measures)}
    judged = {query: dict(documents) for query, documents in judgements.items() if documents}
    ranked = {
        query: best_first(run.rankings[query], run.name) if query in run.rankings else []
        for query in judged
    }
    return {
        name: {query: value(measure, ranked[query], grades) for query, grades in judged.items()}
        for name, measure in wanted.items()
    }


def best_first(ranking: Ranking, run: str) -> list[str]:
    """The document ids by falling score, equal scores by document id.

    A score that is not a number and a document that stands twice have no place in an order:
    both are refused, for either would silently change what is measured.
    """
    scores = dict(ranking)
    if len(scores) < len(ranking):
        twice = Counter(ranking.document_ids).most_common(1)[0][0]
        raise InputError(
            f"run {run!r}: document {twice!r} is retrieved twice for query {ranking.query_id!r}",
            "keep the better of the two lines",
        )
    if any(map(math.isnan, ranking.scores)):
        unscored = next(document for document, score in ranking if math.isnan(score))
        raise InputError(
            f"run {run!r}: the score of document {unscored!r} for query {ranking.query_id!r} is "
            "not a number",
            "find out why the system that wrote the run computed no score",
        )
    return list(Ranking.sorted(ranking.query_id, scores).document_ids)


def value(measure: Measure, ranked: Sequence[str], grades: Grades) -> float:
    """The measure of one ranking, best document first, under the judged documents' grades."""
    name, supported = str(measure.NAME), measure.SUPPORTED_PARAMS
    if "judged_only" in supported and measure["judged_only"]:
        # A grade below 0 says that a document was not judged.
        ranked = [document for document in ranked if grades.get(document, -1) >= 0]
    cutoff: Any = measure["cutoff"] if "cutoff" in supported else NOT_PROVIDED
    top = list(ranked if cutoff is NOT_PROVIDED else ranked[:cutoff])
    if name == "nDCG":
        return _ndcg(top, grades, cutoff, measure["gains"])
    if name == "Judged":
        return sum(document in grades for document in top) / len(top) if top else 0.0
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
    if name == "R_cap":
        most = min(cutoff, len(relevant))
        return len(ranks) / len(relevant) * (len(relevant) / most) if relevant else 0.0
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


def _problem(measure: Measure) -> str:
    known: dict[str, Any] = measure.SUPPORTED_PARAMS
    for name, value in measure.params.items():
        if name not in known:
            return f"it has no setting {name!r}"
        # In Python True is a whole number too, but no cutoff.
        mistaken = isinstance(value, bool) and known[name].dtype is not bool
        too_low = name == "cutoff" and isinstance(value, int) and value < 1
        if mistaken or too_low or not known[name].validate(value):
            return f"{name} = {value!r} makes no sense"
    absent = [name for name in known if known[name].required and name not in measure.params]
    return f"it needs a {absent[0]}" if absent else ""


def _unknown(name: str, where: str) -> SettingsError:
    printed = {
        alias.lower(): str(measure.NAME)
        for alias, measure in registry.items()
        if measure.NAME in _COMPUTED
    }
    # `nDCG10`, and trec_eval's own spelling, `ndcg_cut_10`
    spelt = re.sub(r"(?<=[A-Za-z])(?:_cut)?_?(\d+)$", r"@\1", name)
    base = re.split(r"[@(]", spelt)[0]
    names = [printed[alias] for alias in nearest(base.lower(), printed)]
    example = names[0] + spelt.removeprefix(base)
    return SettingsError(
        f"{where}: there is no measure named {name!r}",
        f"choose one of these, for example {example}",
        ", ".join(dict.fromkeys(names)),
    )


def _form(measure: Measure) -> str:
    """How the measure is written with all its settings: `R(rel=…, judged_only=…)@CUTOFF`."""
    settings = [name for name in measure.SUPPORTED_PARAMS if name != measure.AT_PARAM]
    form = str(measure.NAME)
    if settings:
        form += f"({', '.join(f'{name}=…' for name in settings)})"
    at = measure.SUPPORTED_PARAMS.get(measure.AT_PARAM)
    if at is not None:
        form += f"@{measure.AT_PARAM.upper()}" + ("" if at.required else " (the @ may be absent)")
    return form
