"""A report: what every format says, what is missing, and that it can be made of its own results."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.unit.benchmarks.made_cells import TASKS, failed, protocol, results, with_cost, write

from isthmus.benchmarks.report.report import benchmark_report
from isthmus.benchmarks.report.results import read_results
from isthmus.benchmarks.report.scores import Outcomes
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.verdicts import verdicts
from isthmus.errors import InputError, OutputError

HOSTILE = '<script>alert(1)</script> & "x" $a$ | \\input{x} ]]> \x1b[31m'
CLAIMS = {
    "beats": {
        "statement": f"bow beats none {HOSTILE}",
        "higher": {"starts": ["bow"]},
        "lower": {"starts": ["none"]},
    },
    "lacking": {
        "statement": "lexmae beats none",
        "higher": {"starts": ["lexmae"]},
        "lower": {"starts": ["none"]},
    },
}
EXPECTED = [
    {
        "paper": "theirs", "table": "1", "kind": "dense", "task": "insurance-1000",
        "columns": ["insurance RR@10", "insurance nDCG@10"],
        "rows": {"bow": [0.4, None], "absent": [0.3, None]},
    },
    {
        "paper": "theirs", "table": "2", "kind": "dense", "task": "insurance-1000",
        "columns": ["msmarco RR@10", "msmarco R@50"], "rows": {"bow": [0.4, 0.5]},
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """54 of 72 cells, 6 of them failed: lexmae lacks tasks, mlm a seed."""
    made = protocol(
        ["none", "mlm", "bow", "lexmae"], ("dense", "sparse"), zero_shot=["flights"],
        claims=CLAIMS, expected=EXPECTED, measures=["RR@10", "nDCG@10"],
    )  # fmt: skip
    cells = []
    for result in results(made, {"bow": 0.08}, queries=60, seed_noise=0.002, noise=0.05):
        cell = result.cell
        if (cell.start, cell.task) == ("lexmae", "medicine-1000"):
            continue
        if (cell.start, cell.pretraining_seed) == ("mlm", 3):
            continue
        if (cell.start, cell.task) == ("lexmae", "insurance-all"):
            cells.append(failed(result, HOSTILE))
            continue
        seconds = {"none": 0.0, "mlm": 50.0}.get(cell.start, 60.0)
        size = 1000.0 if cell.kind == "dense" else 700.0
        cells.append(
            with_cost(
                result, pretraining_seconds=seconds, index_bytes=size, query_seconds=size / 1e6
            )
        )
    return write(tmp_path_factory.mktemp("made") / "run", made, cells, f"grid {HOSTILE}")


class Page(HTMLParser):
    """The tags and attributes of a page, and the texts of its tables' rows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_every_format_is_there(folder: Path, tmp_path: Path) -> None:
    report = benchmark_report(folder, tmp_path / "report")
    texts = {file.name: file for file in (tmp_path / "report").iterdir()}
    assert texts.keys() == {
        "isthmus.json", "report.html", "report.md", "report.tex", "report.json", "results.parquet"
    }  # fmt: skip
    assert texts["report.md"].read_text(encoding="utf-8") == report.markdown()
    decisions = {"beats": "held", "lacking": "incomplete"}
    said = json.loads(texts["report.json"].read_text())
    assert {one["name"]: one["decision"] for one in said["verdicts"]} == decisions
    assert json.loads(texts["isthmus.json"].read_text())["results"] == {"verdicts": decisions}
    assert "held" in repr(report)
    latex = report.latex()
    assert "\\input{" not in latex
    assert latex.count("\\begin{table}") == latex.count("\\end{table}")
    for line in report.markdown().splitlines():
        assert "<script" not in line.replace("\\<script", "")


def test_the_page_needs_nothing_else_and_shows_texts_as_texts(folder: Path, tmp_path: Path) -> None:
    benchmark_report(folder, tmp_path / "report")
    text = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & {*page.tags}
    assert "\x1b" not in text
    for name, value in page.attributes:
        assert not name.startswith("on"), name
        if name in ("href", "src", "xlink:href"):
            assert (value or "").startswith("#")
    assert "@import" not in text
    rows = {(row[1], row[0]): row for row in reversed(page.rows) if len(row) > 5}
    assert rows["bow", "c"][2].startswith(".4")
    assert "failed" in rows["lexmae", "d"]
    assert "missing" in rows["lexmae", "d"]
    assert any("2/3 runs" in cell for cell in rows["mlm", "b"])
    assert text.count("<svg") == 5  # verdicts, three costs, gains


def test_what_is_missing_is_counted(folder: Path, tmp_path: Path) -> None:
    report = benchmark_report(folder, tmp_path / "report")
    assert "54 of 72 cells are done, 6 failed, 12 missing" in report.summary
    assert report.failures is not None
    assert len(report.failures.rows) == 6
    assert len(report.costs) == 6  # by task and kind
    assert [row[2].text for row in report.costs[0].rows] == ["0", "50", "60", "60"]
    assert [row[4].text for row in report.costs[0].rows] == ["1"] * 4  # milliseconds
    assert report.expected is not None
    assert {row[-1].text for row in report.expected.rows} == {"no"}
    here, lacking, far, other = (row[-2].text for row in report.expected.rows)
    assert lacking == "–"  # a row of the paper that the grid lacks
    assert far == f"{here} (insurance)"  # the main result, of another collection
    assert other == "–"  # no main result
    best = [[cell.best for cell in row[2:5]] for row in report.tables[0].table.rows]
    assert best == [[False] * 3, [False] * 3, [True] * 3, [False] * 3]


def test_a_report_is_made_again_from_its_results(folder: Path, tmp_path: Path) -> None:
    first = benchmark_report(folder, tmp_path / "first")
    again = benchmark_report(tmp_path / "first" / "results.parquet", tmp_path / "again")
    assert again.verdicts == first.verdicts
    tables = {one.title: one.table for one in first.tables}
    assert [one.measure for one in again.tables] == ["RR@10"] * len(again.tables)
    for one in again.tables:
        # A failed cell is no result: it is missing there.
        texts = [[cell.text.replace("failed", "missing") for cell in row]
                 for row in tables[one.title].rows]  # fmt: skip
        assert [[cell.text for cell in row] for row in one.table.rows] == texts
    assert again.costs == first.costs
    kept = (tmp_path / "again" / "results.parquet").read_bytes()
    assert kept == (tmp_path / "first" / "results.parquet").read_bytes()


def test_a_file_without_results_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "results.parquet"
    file.write_text("no table")
    with pytest.raises(InputError, match="holds no results of a benchmark"):
        benchmark_report(file, tmp_path / "report")


def test_coverage_is_averaged_over_seeds(tmp_path: Path) -> None:
    made = protocol(["none", "mlm", "bow"], seeds=[1, 2])
    measured = {"coverage": 0.5, "coverage/constant_at_10": 0.2, "coverage/ceiling_at_10": 0.9}
    cells = []
    for result in results(made, {}, queries=5):
        seed, task = result.cell.pretraining_seed, result.cell.task
        if result.cell.start == "none" or (seed, task) == (2, "insurance-all"):
            cells.append(result)  # a start that nothing trains has no probes of its own
            continue
        reached = (0.3 if result.cell.start == "mlm" else 0.6) + seed / 100
        after = {**measured, "coverage/at_1": reached / 5, "coverage/at_10": reached}
        # Measured again by the cells of every start, on a machine of its own.
        before = {"mlm": 0.24, "bow": 0.26}[result.cell.start]
        probes = {"probes": after, "probes_before": {"coverage/at_10": before}}
        cells.append(result.model_copy(update=probes))
    report = benchmark_report(write(tmp_path / "run", made, cells))
    (curves,) = report.coverage  # all are pre-trained on one corpus
    assert (curves.corpus, curves.k) == ("insurance", (1, 10))
    # A seed counts once, with however many cells; the base was measured where others began.
    assert curves.starts["bow"][10] == pytest.approx(0.615)
    assert curves.starts["none"] == pytest.approx({10: 0.25})
    assert curves.guides == {"most frequent tokens": {10: 0.2}, "most there is": {10: 0.9}}
    assert "| bow | .123 | .615 |" in report.markdown()
    assert any("coverage by k, insurance" in title for title, _ in report.plots)


def test_one_seed_is_said_and_what_cannot_be_computed_is_null(tmp_path: Path) -> None:
    """One query has no deviation: no interval, no power."""
    made = protocol(["none", "bow"], seeds=[1], claims={"it": CLAIMS["beats"]})
    report = benchmark_report(write(tmp_path / "run", made, results(made, {}, queries=1)))
    assert report.tables[0].table.columns[2] == "insurance-1000 (one seed)"
    written = (tmp_path / "run" / "report" / "report.json").read_text(encoding="utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    (verdict,) = json.loads(written, parse_constant=refuse)["verdicts"]
    assert verdict["overall"]["interval"] == [None, None]
    assert "inf" not in report.markdown().split("## How")[0].replace("insurance", "")


def test_cells_that_the_protocol_no_longer_has_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = protocol(["none", "bow", "old"], seeds=[1, 2])
    write(tmp_path / "run", before, results(before, {}, queries=20))
    write(tmp_path / "run", protocol(["none", "bow"], seeds=[1]), [])
    (tmp_path / "run" / "cells" / "._hidden.json").write_bytes(b"\x00\x05")  # as macOS leaves them
    report = benchmark_report(tmp_path / "run")
    assert "6 of 6 cells are done." in report.summary
    assert "12 cells are of other starts, tasks or seeds" in capsys.readouterr().err


def test_a_task_with_seeds_of_its_own_is_whole_without_the_others(tmp_path: Path) -> None:
    task = next(iter(TASKS))
    tasks = {**TASKS, task: {**TASKS[task], "seeds": {"pretraining": [2]}}}
    made = protocol(["none", "bow"], tasks=tasks, seeds=[1, 2], claims={"it": CLAIMS["beats"]})
    done = [
        result for result in results(made, {}, queries=20)
        if result.cell.task != task or result.cell.pretraining_seed == 2
    ]  # fmt: skip
    report = benchmark_report(write(tmp_path / "run", made, done))
    assert f"({task}: of their own): 10 of 10 cells are done." in report.summary
    assert report.verdicts[0].decision != "incomplete"
    assert report.tables[0].table.columns[2] == "insurance-1000 (one seed)"


def test_a_report_replaces_a_report_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "report"
    benchmark_report(folder, target)
    benchmark_report(folder, target, settings={"alpha": 0.01})
    assert json.loads((target / "report.json").read_text())["settings"]["alpha"] == 0.01
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    with pytest.raises(OutputError, match="something other than a report"):
        benchmark_report(folder, other)
    assert [file.name for file in other.iterdir()] == ["thesis.tex"]


def test_a_pretraining_counts_once(tmp_path: Path) -> None:
    made = protocol(["none", "bow"], ("dense", "sparse"))
    cells = [
        with_cost(one, pretraining_seconds=100.0 * one.cell.pretraining_seed)
        for one in results(made, {}, queries=3)
        if (one.cell.task, one.cell.pretraining_seed) != ("insurance-all", 3)
    ]
    report = benchmark_report(write(tmp_path / "run", made, cells))
    assert {row[2].text for row in report.costs[0].rows} == {"200"}


def test_published_results_make_their_reports() -> None:
    """Of their headers every file is read; of the smallest, the verdicts too."""
    files = sorted((Path(__file__).parents[3] / "docs" / "results").glob("*.parquet"))
    assert [read_results(file)[0] for file in files] == [file.stem for file in files]
    name, made, cells = read_results(files[0])
    found = verdicts(Outcomes(made, cells), ReportSettings())
    decisions = {"pmi-masking": "undecided", "neighbours": "undecided"}
    assert (name, {one.name: one.decision for one in found}) == ("ablations-small", decisions)
