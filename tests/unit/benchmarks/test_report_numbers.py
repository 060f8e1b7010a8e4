"""Numbers of a report: of which seeds, runs, tasks and cells, and what is drawn of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.benchmarks.made_cells import (
    TASKS,
    failed,
    protocol,
    results,
    with_cost,
    with_scores,
    write,
)

from isthmus.benchmarks.protocol.cells import Cost
from isthmus.benchmarks.protocol.cells import Tested as Measured
from isthmus.benchmarks.report.benchmark_report import assemble, benchmark_report
from isthmus.benchmarks.report.contents import BenchmarkReport
from isthmus.benchmarks.report.outcomes import Outcomes
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.summary_tables import cost_tables, finding_table, numbers
from isthmus.errors import InputError

BEATS: dict[str, Any] = {
    "statement": "bow beats none",
    "higher": {"starts": ["bow"]},
    "lower": {"starts": ["none"]},
}


def test_seeds_are_counted_not_guessed_from_how_scores_vary(tmp_path: Path) -> None:
    """Three seeds of a checkpoint that nothing trains are no single seed; nor is nothing done."""
    made = protocol(["none", "bow"], claims={"it": BEATS})
    cells = []
    for result in results(made, {"bow": 0.1}, queries=50):
        if result.cell.task == "medicine-1000":
            continue
        if result.cell.task == "insurance-all":
            level = 0.5 if result.cell.start == "none" else 0.7
            result = with_scores(result, {f"q{n}": level + n / 1000 for n in range(50)})
        cells.append(result)
    report = benchmark_report(write(tmp_path / "run", made, cells), settings={"texts": False})
    table = report.tables[0].table
    assert not any("one seed" in name for name in table.columns)
    assert "one seed" not in table.caption
    (verdict,) = report.verdicts
    assert "at 2 of 2 places" in verdict.reason
    assert all(one.estimate.knows_seeds for one in verdict.findings if one.estimate)
    # The mean of equal scores differs from seed to seed by rounding alone, which is no variance.
    outcomes = Outcomes(made, cells)
    column = outcomes.columns("dense", "RR@10")[1]
    assert outcomes.seed_variance(((column, 1.0),)) is None


def test_a_mean_that_differs_by_rounding_alone_has_no_variance() -> None:
    made = protocol(["none"])
    cells = [
        with_scores(one, {f"q{n}": 0.1 * n + 1e-13 * one.cell.pretraining_seed for n in (1, 2)})
        for one in results(made, {}, queries=1)
    ]
    outcomes = Outcomes(made, cells)
    column = outcomes.columns("dense", "RR@10")[0]
    scores = outcomes.scores("none", column)
    assert scores is not None
    assert len({*scores.values.mean(axis=1)}) > 1
    assert outcomes.seed_variance(((column, 1.0),)) is None


def test_one_lucky_run_is_not_called_best(tmp_path: Path) -> None:
    made = protocol(["none", "mlm", "bow"])
    cells = [
        one for one in results(made, {"mlm": 0.1, "bow": 0.3}, queries=50)
        if one.cell.start != "bow" or one.cell.pretraining_seed == 1
    ]  # fmt: skip
    report = benchmark_report(write(tmp_path / "run", made, cells), settings={"texts": False})
    rows = report.tables[0].table.rows
    assert [[cell.best for cell in row[2:5]] for row in rows] == [
        [False] * 3, [True] * 3, [False] * 3
    ]  # fmt: skip
    assert [row[-1].text for row in rows] == ["0", "3", "0"]
    assert "half of the runs of others is not called best" in report.tables[0].table.interval_note


def test_costs_are_shown_of_a_start_alone_and_beside_what_is_not_known() -> None:
    made = protocol(["none", "mlm", "bow"])
    cells = [
        with_cost(one, index_bytes=1000.0, parameters=5.0)
        if one.cell.start != "bow"
        else with_cost(one, parameters=5.0)
        for one in results(made, {}, queries=2)
    ]
    ((table,), *_) = cost_tables(Outcomes(made, cells)).values()
    assert table.columns == ("#", "start", "index bytes")  # which are not the same for all
    assert [row[2].text for row in table.rows] == ["1,000", "1,000", "–"]
    assert table.caption.endswith("The same for all: parameters: 5.")
    known = [one for one in cells if one.cell.start != "bow"]
    alike = protocol(["none", "mlm"])
    ((table,), *_) = cost_tables(Outcomes(alike, known)).values()
    assert table.caption.endswith("The same for all: index bytes: 1,000, parameters: 5.")
    first = [one for one in cells if one.cell.start == "none"]
    ((table,), *_) = cost_tables(Outcomes(made, first)).values()
    assert [row[2].text for row in table.rows] == ["1,000", "–", "–"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tests": {}}, "no scores at all"),
        (
            {"tests": {"insurance": Measured(measures={}, per_query={"RR@10": {"q": 1e300}})}},
            "q 1e+300",
        ),
        ({"cost": Cost(index_bytes=1e308)}, "costs: index_bytes 1e+308"),
        ({"probes": {"coverage": -1e300}}, "probes: coverage -1e+300"),
    ],
)
def test_numbers_that_nothing_can_be_computed_with_are_refused(
    change: dict[str, Any], said: str
) -> None:
    made = protocol(["none", "bow"])
    cells = results(made, {}, queries=3)
    with pytest.raises(InputError, match=re.escape(said)) as refused:
        Outcomes(made, [cells[0].model_copy(update=change)])
    assert cells[0].cell.name in refused.value.what
    Outcomes(made, [cells[0].model_copy(update={**change, "status": "failed"})])


def test_what_is_not_finite_is_null_in_json(tmp_path: Path) -> None:
    """One query has no deviation: no standardised difference, no interval, no power."""
    made = protocol(["none", "bow"], seeds=[1], claims={"it": BEATS})
    benchmark_report(write(tmp_path / "run", made, results(made, {}, queries=1)))
    written = (tmp_path / "run" / "report" / "report.json").read_text(encoding="utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    (verdict,) = json.loads(written, parse_constant=refuse)["verdicts"]
    assert verdict["overall"]["interval"] == [None, None]
    assert verdict["overall"]["bound"] is None


def test_what_decides_is_shown_and_p_values_are_called_what_they_are() -> None:
    made = protocol(["none", "bow"], claims={"one": BEATS, "other": BEATS})
    cells = results(made, {"bow": 0.003}, queries=50)
    report = assemble("", Outcomes(made, cells), ReportSettings())
    for verdict, values in zip(report.verdicts, report.to_json()["verdicts"], strict=True):
        assert verdict.overall is not None
        assert values["overall"]["bound"] == verdict.overall.bound
        assert verdict.overall.bound > verdict.overall.interval[1]  # type: ignore[index]
        table = finding_table([verdict], ReportSettings())
        assert table is not None
        at_most = table.rows[0][table.columns.index("at most")].text
        assert at_most == f"{verdict.overall.bound:+.3f}".replace("0.", ".", 1)
        assert "corrected p " in numbers(verdict.overall)
    first = [one for one in cells if one.cell.pretraining_seed == 1]
    report = assemble("", Outcomes(made, first), ReportSettings())
    for verdict in report.verdicts:
        assert verdict.overall is not None
        assert ", p " in numbers(verdict.overall)  # of one seed, which is no family


@pytest.fixture(scope="module")
def differing() -> BenchmarkReport:
    """Gains and costs that differ by task, seed and start; a cell that failed was dear."""
    starts = ["none", "mlm", "bow", "retromae", "lexmae", "cotmae", "dupmae"]
    tasks = {**TASKS, "medicine-all": {"collection": "medicine"}}
    made = protocol(starts, tasks=tasks)
    base = {"insurance-1000": 0.06, "insurance-all": 0.03, "medicine-1000": 0.01}
    gains = {
        name: {task: gain * number / 6 for task, gain in base.items()}
        for number, name in enumerate(starts)
    }
    cells = []
    for one in results(made, gains, queries=2000, noise=0.01):
        number = list(TASKS).index(one.cell.task) if one.cell.task in TASKS else 3
        cost = {
            "query_seconds": 0.01 * (number + 1) * (starts.index(one.cell.start) + 1),
            "index_bytes": 1000.0 * (number + 1) * one.cell.pretraining_seed,
        }
        if (one.cell.start, one.cell.pretraining_seed) == ("dupmae", 3):
            one = failed(one, "no memory")
            cost = dict.fromkeys(cost, 1e6)
        cells.append(with_cost(one, **cost))
    return assemble("", Outcomes(made, cells), ReportSettings())


def test_costs_are_of_one_task_and_of_finished_cells(differing: BenchmarkReport) -> None:
    for number, task in enumerate(("insurance-1000", "insurance-all", "medicine-1000"), 1):
        (table,) = differing.costs[task]
        shown = {row[1].text: [cell.text for cell in row[2:]] for row in table.rows}
        assert shown["none"] == [f"{2000 * number:,}", str(10 * number)]  # bytes, milliseconds
        assert shown["dupmae"] == [f"{1500 * number:,}", str(70 * number)]  # of two seeds


def test_dots_stand_at_queries_per_second(differing: BenchmarkReport) -> None:
    plots = next(one for one in differing.figures if "queries per second" in one.title).plots
    assert len(plots) == 4  # bytes and speed, after the first task on each of two collections
    (speed, later) = (plot for plot in plots if ">queries per second<" in plot)
    assert "<title>none, dense: queries per second 100, dense, insurance-1000:" in speed
    assert "<title>bow, dense: queries per second 33.3, dense, insurance-1000:" in speed
    assert "<title>none, dense: queries per second 33.3, dense, medicine-1000:" in later


def test_gains_are_over_the_first_start_and_the_highest_have_colours(
    differing: BenchmarkReport,
) -> None:
    plot = next(one for one in differing.figures if one.title.startswith("Gain")).plots[0]
    gains = {
        (name, task): float(gain)
        for name, task, gain in re.findall(
            r"<title>([a-z]+), ([-a-z0-9]+): [^<]* ([-.0-9]+)<", plot
        )
    }
    assert gains["dupmae", "insurance-1000"] == pytest.approx(0.06, abs=0.002)
    assert gains["dupmae", "insurance-all"] == pytest.approx(0.03, abs=0.002)
    coloured = dict(re.findall(r'<g class="(tone.|faint)">.*?<title>([a-z]+)</title>', plot))
    assert [coloured.get(f"tone{n}") for n in range(4)] == [
        "dupmae",
        "cotmae",
        "lexmae",
        "retromae",
    ]
    assert coloured["faint"] in ("mlm", "bow")
