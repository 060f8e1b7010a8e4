"""Measures by name, as in ir_measures, computed per query by trec_eval underneath.

`nDCG@10`, `RR@10`, `R@100`, `Success@20`, `AP`, `Judged@10`, `RR(rel=2)@10` and every other
measure of ir_measures that is a mean over queries; its aliases too (`MRR@10` is read and printed
as `RR@10`, `MAP` as `AP`). Two are ours: `R_cap@k`, the recall of LexMAE eq. 14, and `Answer@k`,
which `answers.py` counts.

Which queries count: every query with at least one judgement, as in `trec_eval -c`. A query
without results scores 0, and so does a query whose judgements are all 0: trec_eval evaluates it
too. Queries of the run without judgements are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ir_measures
from ir_measures import Measure
from ir_measures.measures import MeanAgg, ParamInfo, register, registry

from isthmus.errors import SettingsError, nearest, shown
from isthmus.evaluation.ranking_order import best_first
from isthmus.evaluation.trec_measures import TrecMeasures
from isthmus.records import Judgements, Run

_pipeline: Any = ir_measures.DefaultPipeline  # ir_measures declares no types for its methods


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
    _pipeline.providers.append(TrecMeasures())  # type: ignore[no-untyped-call]


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
            ", ".join(_computable()),
        )
    if not isinstance(measure.aggregator(), MeanAgg):
        raise SettingsError(
            f"{where}: {name!r} is a count, not a mean over queries",
            "leave it out: the report counts the queries by itself",
        )
    if not isinstance(measure, CappedRecall) and not _pipeline.supports(measure):
        raise SettingsError(
            f"{where}: no installed package computes {name!r}",
            "choose another measure, or install what ir_measures needs to compute it",
            ", ".join(_computable()),
        )
    return measure


def per_query(
    run: Run, judgements: Judgements, measures: Sequence[str]
) -> dict[str, dict[str, float]]:
    """The value of every judged query by the measure's printed name, in the judgements' order."""
    wanted = {str(measure): measure for measure in map(parse_measure, measures)}
    judged = {query: dict(documents) for query, documents in judgements.items() if documents}
    ranked = {
        query: best_first(run.rankings[query], run.name)
        for query in judged
        if query in run.rankings
    }
    # trec_eval knows scores only: it keeps them in 32 bits and breaks ties by falling document
    # id, other evaluators by rising id or by position. The ranks themselves as scores are exact
    # and without ties, so that everyone sees the order that we mean.
    scores = {
        query: {document: float(len(ids) - rank) for rank, document in enumerate(ids)}
        for query, ids in ranked.items()
        if ids
    }
    computed = {name: _underlying(measure) for name, measure in wanted.items()}
    values = {
        (metric.measure, metric.query_id): float(metric.value)
        for metric in ir_measures.iter_calc(set(computed.values()), judged, scores)
    }
    return {
        name: {
            query: values[computed[name], query] * _scale(measure, judged[query])
            for query in judged
        }
        for name, measure in wanted.items()
    }


def _underlying(measure: Measure) -> Measure:
    if isinstance(measure, CappedRecall):
        plain: Measure = type(ir_measures.R)(**measure.params)
        return plain
    return measure


def _scale(measure: Measure, judged: dict[str, int]) -> float:
    """What turns the underlying measure into the wanted one: |D+| / min(k, |D+|), or 1."""
    if not isinstance(measure, CappedRecall):
        return 1.0
    relevant = sum(relevance >= measure["rel"] for relevance in judged.values())
    return relevant / min(measure["cutoff"], relevant) if relevant else 1.0


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
    computable = _computable()
    printed = {
        alias.lower(): str(measure.NAME)
        for alias, measure in registry.items()
        if measure.NAME in computable
    }
    spelt = re.sub(r"(?:_cut)?_(\d+)$", r"@\1", name)  # trec_eval's own spelling, `ndcg_cut_10`
    base = re.split(r"[@(]", spelt)[0]
    names = [printed[alias] for alias in nearest(base.lower(), printed)]
    example = names[0] + spelt.removeprefix(base)
    return SettingsError(
        f"{where}: there is no measure named {name!r}",
        f"choose one of these, for example {example}",
        ", ".join(dict.fromkeys(names)),
    )


def _computable() -> list[str]:
    """The names of all measures that something installed computes and that are means."""
    names = {
        str(measure.NAME)
        for provider in _pipeline.providers
        if provider.is_available()
        for measure in provider.SUPPORTED_MEASURES
        if isinstance(measure.aggregator(), MeanAgg)
    }
    return sorted({*names, CappedRecall.NAME})


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
