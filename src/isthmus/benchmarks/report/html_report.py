"""The report as one HTML page, which needs nothing but itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from isthmus.benchmarks.report.contents import BenchmarkReport
from isthmus.benchmarks.report.cost_claims import Decision
from isthmus.benchmarks.report.drawing import Interval, forest
from isthmus.benchmarks.report.plots import Figure
from isthmus.benchmarks.report.score_tables import ScoreTable
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.summary_tables import finding_table, numbers, p_shown
from isthmus.benchmarks.report.verdicts import Finding, Verdict, rule
from isthmus.benchmarks.report.wins import Example, WinsAndLosses
from isthmus.evaluation.pages import page
from isthmus.evaluation.tables import Table
from isthmus.evaluation.tables import escape_html as text

_CUT = 600  # characters of a text that are shown
_DECISIONS: tuple[Decision, ...] = ("held", "did not hold", "undecided")


def html_report(report: BenchmarkReport) -> str:
    """The whole page: verdicts, tables, costs, plots, queries to read, what is missing."""
    sections = {
        "Verdicts": [*_verdicts(report.verdicts, report.settings)] if report.verdicts else [],
        "Scores": [*_scores(report.tables)],
        "Costs": [*_costs(report.costs)],
        "Plots": [_figure(figure) for figure in report.figures],
        "Input token coverage": [*_tables(one.table() for one in report.coverage)],
        "Queries to read": [part for one in report.wins for part in _wins(one)],
        "What the papers report": [*_tables([report.expected])],
        "Failed cells": [*_tables([report.failures])],
        "How this was computed": [f"<p>{text(sentence)}</p>" for sentence in report.method],
    }
    shown = {title: parts for title, parts in sections.items() if parts}
    links = "".join(f'<a href="#{_anchor(title)}">{title}</a>' for title in shown)
    parts = [f"<header><h1>{text(report.title)}</h1>"]
    parts += [f"<p>{text(report.summary)}</p><nav>{links}</nav></header>"]
    for title, inner in shown.items():
        parts += [f'<section id="{_anchor(title)}"><h2>{title}</h2>', *inner, "</section>"]
    return page(report.title, parts)


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _tables(tables: Iterable[Table | None], kind: str = "") -> Iterable[str]:
    return (
        f'<figure class="table {kind}">{table.html(inline=False)}</figure>'
        for table in tables
        if table is not None
    )


def _scores(tables: Sequence[ScoreTable]) -> Iterable[str]:
    """The tasks' own collections by the first measure; what is zero-shot, or by others, unfolds."""
    first = tables[0].measure if tables else ""
    folded: dict[str, list[ScoreTable]] = {}
    for one in tables:
        if one.measure == first and not one.zero_shot:
            yield f"<h3>{text(one.title)}</h3>"
            yield from _tables([one.table], "scores")
        elif one.measure == first:
            folded.setdefault(f"{one.kind}, zero-shot", []).append(one)
        else:
            folded.setdefault(f"all by {one.measure}", []).append(one)
    for title, inner in folded.items():
        yield f"<details><summary>{text(title)}: {len(inner)} tables</summary>"
        for one in inner:
            yield f"<h3>{text(one.title)}</h3>"
            yield from _tables([one.table], "scores")
        yield "</details>"


def _costs(costs: Mapping[str, Sequence[Table]]) -> Iterable[str]:
    """The tables of the first task; those of others unfold."""
    for number, (task, tables) in enumerate(costs.items()):
        if number:
            yield f"<details><summary>{text(task)}</summary>"
        yield from _tables(tables)
        if number:
            yield "</details>"


def _verdicts(verdicts: Sequence[Verdict], settings: ReportSettings) -> Iterable[str]:
    counts = Counter(one.decision for one in verdicts)
    yield "<ul class=counts>"
    for decision in _DECISIONS:
        yield f"<li><b>{counts[decision]}</b>{decision}</li>"
    yield "</ul>"
    for one in verdicts:
        yield f'<div class=verdict><div class="decision {_mark(one.decision)}">{one.decision}</div>'
        yield f"<div><h3>{text(one.claim.statement)}</h3>"
        missing = "" if one.complete else " Cells are missing: this may change."
        average = "" if one.overall is None else f"<b>{numbers(one.overall)}</b>: "
        yield f"<p>{average}{text(one.reason)}.{missing}</p>"
        if one.claim.paper:
            yield f"<p class=quiet>{text(one.claim.paper)}</p>"
        intervals = [*_intervals(one, settings)]
        if intervals:
            yield forest(one.claim.statement, intervals, settings.smallest_effect)
        absent = [
            f"{found.place} ({', '.join(found.without)})" for found in one.findings if found.without
        ]
        if absent:
            yield f"<p class=quiet>Left out, with no or too few runs: {text('; '.join(absent))}</p>"
        for table in _tables([finding_table([one], settings)]):
            yield f"<details><summary class=quiet>all tests</summary>{table}</details>"
        yield "</div></div>"
    yield f"<p class=quiet>{text(rule(settings))}</p>"


def _mark(decision: str) -> str:
    return decision.replace(" ", "-")


def _intervals(verdict: Verdict, settings: ReportSettings) -> Iterable[Interval]:
    places = verdict.findings if len(verdict.findings) > 1 else ()
    for found in (verdict.overall, *places):
        if found is None or found.estimate is None or found.interval is None:
            continue
        mark = ""
        if found.corrected_p_value < settings.alpha:
            mark = "for" if found.difference > 0 else "against"
        mark += " overall" if found is verdict.overall else ""
        place = found.place
        if verdict.overall and _seeds(verdict.overall) and not _seeds(found):
            mark, place = f"{mark} once", f"{place} (one seed)"
        yield Interval(place, found.difference, *found.interval, p_shown(found), mark)


def _seeds(found: Finding) -> bool:
    return found.estimate is not None and found.estimate.knows_seeds


def _figure(figure: Figure) -> str:
    panels = "".join(f"<div>{plot}</div>" for plot in figure.plots)
    return (
        f"<figure class=plots><figcaption><b>{text(figure.title)}</b>"
        f"<span class=quiet>{text(figure.caption)}</span></figcaption>"
        f"<div class=panels>{panels}</div></figure>"
    )


def _wins(one: WinsAndLosses) -> Iterable[str]:
    better, worse = one.starts
    column = one.column
    yield f"<h3>{text(f'{better} against {worse}: {column.kind}, {column.task}')}</h3>"
    yield (
        f"<p>By {text(column.measure)}, averaged over seeds: {one.won:,} queries won, "
        f"{one.tied:,} tied, {one.lost:,} lost.</p>"
    )
    for title, examples in (("Won", one.wins), ("Lost", one.losses)):
        if examples:
            yield f"<h4>{title}</h4>"
            yield from (_example(one, example) for example in examples)


def _example(one: WinsAndLosses, example: Example) -> str:
    query = one.queries.get(example.query, f"query {example.query}")
    scores = ", ".join(
        f"{start} {score:.2f}" for start, score in zip(one.starts, example.scores, strict=True)
    )
    passages = [_passage(one, "positive", "relevant", document) for document in example.relevant]
    passages += [
        _passage(one, "negative", f"first of {start}", document)
        for start, document in zip(one.starts, example.first, strict=True)
        if document is not None and document not in example.relevant
    ]
    return (
        f"<details class=example><summary><b>{text(query)}</b> "
        f"<span class=quiet>{text(scores)}</span></summary>{''.join(passages)}</details>"
    )


def _passage(one: WinsAndLosses, mark: str, label: str, document: str) -> str:
    words = " ".join(one.documents.get(document, "").split())
    words = words if len(words) <= _CUT else f"{words[:_CUT]}…"
    return (
        f"<p><span class={mark}>{text(label)}</span> <span class=quiet>{text(document)}</span>"
        f"<br>{text(words)}</p>"
    )
