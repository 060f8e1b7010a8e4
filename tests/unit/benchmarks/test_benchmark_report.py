"""A report of cells whose truth is known: every format, whatever is missing, whatever texts say."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.unit.benchmarks.made_cells import (
    TASKS,
    failed,
    protocol,
    results,
    with_cost,
    write,
)
from typer.testing import CliRunner

from isthmus.benchmarks.report.benchmark_report import assemble, benchmark_report
from isthmus.benchmarks.report.html_report import html_report
from isthmus.benchmarks.report.outcomes import Outcomes
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.cli import app
from isthmus.errors import InputError, OutputError, SettingsError

HOSTILE = (
    '<script src="https://evil.example/x.js">alert("1")</script>\x1b[2J & $x_1$ \\input{/etc} |'
)
CLAIMS: dict[str, Any] = {
    "beats": {
        "statement": f"bow beats none {HOSTILE}",
        "paper": HOSTILE,
        "higher": {"starts": ["bow"]},
        "lower": {"starts": ["none"]},
    },
}
EXPECTED = [
    {
        "paper": HOSTILE, "table": "Table 1", "kind": "dense", "task": "insurance-all",
        "columns": ["insurance RR@10"], "rows": {"none": [31.9], HOSTILE: [35.9]}, "note": HOSTILE,
    },
    {
        "paper": "far", "table": "2", "kind": "dense", "task": "insurance-all",
        "columns": ["far RR@10", "far nDCG@10", "part RR@10"], "rows": {"none": [0.3, 0.4, 0.5]},
    },
    {
        "paper": "far", "table": "3", "kind": "dense", "task": "insurance-all",
        "columns": ["far nDCG@10"], "rows": {"none": [0.4]},
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cells of four starts: one failed in one task, one is missing, one has fewer seeds."""
    place = tmp_path_factory.mktemp("benchmark")
    collection = place / "insurance"
    (collection / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{number}", "text": f"text {number} {HOSTILE}"} for number in range(60)]
    queries = [
        {"_id": f"q{number}", "text": f"question {number} {HOSTILE}"} for number in range(60)
    ]
    for name, lines in (("corpus", documents), ("queries", queries)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (collection / f"{name}.jsonl").write_text(text, encoding="utf-8")
    judged = "".join(f"q{number}\td{number}\t1\n" for number in range(60))
    qrels = "query-id\tcorpus-id\tscore\n" + judged
    (collection / "qrels" / "test.tsv").write_text(qrels, encoding="utf-8")
    made = protocol(
        ["none", "mlm", "bow", "lexmae"], ("dense", "sparse"), zero_shot=["flights"],
        claims=CLAIMS, expected=EXPECTED, measures=["RR@10", "nDCG@10"],
    )  # fmt: skip
    collections = {
        **made.collections,
        "insurance": made.collections["insurance"].model_copy(update={"spec": str(collection)}),
    }
    made = made.model_copy(update={"collections": collections})
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
        result = with_cost(
            result, pretraining_seconds=seconds, index_bytes=size, query_seconds=size / 1e6
        )
        for test in result.tests.values():
            test.first.update({f"q{number}": "d59" for number in range(60)})
        cells.append(result)
    return write(place / "run", made, cells, f"grid {HOSTILE}")


class Page(HTMLParser):
    """The tags, attributes and texts of a page, and the rows of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
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
        self.words.append(data)
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_every_format_is_there_and_says_the_same(folder: Path, tmp_path: Path) -> None:
    report = benchmark_report(folder, tmp_path / "report")
    texts = {
        file.name: file.read_text(encoding="utf-8") for file in (tmp_path / "report").iterdir()
    }
    formats = {"report.html", "report.md", "report.tex", "report.json", "comparisons.tsv"}
    assert set(texts) == {*formats, "isthmus.json"}
    values = json.loads(texts["report.json"])
    (verdict,) = values["verdicts"]
    assert verdict["decision"] == "held"
    assert verdict["overall"]["difference"] == pytest.approx(0.08, abs=0.02)
    for name in ("report.html", "report.md", "report.tex"):
        assert "held" in texts[name], name
        assert "missing" in texts[name], name
        assert "failed" in texts[name], name
    first = values["tables"][0]
    assert first["title"] == "dense, RR@10"
    bow = next(row for row in first["rows"] if row[1]["text"] == "bow")
    assert (bow[0]["text"], bow[2]["letters"], bow[2]["best"]) == ("c", "abd", True)
    lines = [line.split("\t") for line in texts["comparisons.tsv"].splitlines()]
    compared = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    one = next(line for line in compared if (line["first"], line["second"]) == ("mlm", "bow"))
    assert float(one["difference"]) == pytest.approx(-0.08, abs=0.03)
    assert float(one["p_over_queries"]) <= float(one["p_over_both"]) < 0.05
    assert (one["seeds"], one["significant"]) == ("2", "True")
    assert "held" in repr(report)
    assert json.loads(texts["isthmus.json"])["results"] == {"verdicts": {"beats": "held"}}


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
    assert "url(" not in text
    words = "".join(page.words)
    for said in ("bow beats none <script", "question ", "text ", "first of none", "12 missing"):
        assert said in words
    rows = {(row[1], row[0]): row for row in reversed(page.rows) if len(row) > 5}
    assert rows["bow", "c"][2].startswith(".4")
    assert "failed" in rows["lexmae", "d"]
    assert "missing" in rows["lexmae", "d"]
    assert any("2/3 runs" in cell for cell in rows["mlm", "b"])
    assert text.count("<svg") >= 6


def test_markdown_and_latex_are_not_broken_by_texts(folder: Path, tmp_path: Path) -> None:
    report = benchmark_report(folder, tmp_path / "report")
    for line in report.markdown().splitlines():
        assert "<script" not in line.replace("\\<script", "")
    latex = report.latex()
    assert "\\input{" not in latex
    assert latex.count("\\begin{table}") == latex.count("\\end{table}") == latex.count("\\toprule")
    assert "\\cmidrule(lr){3-4}" in latex  # two tasks of one collection


def test_what_is_missing_is_counted(folder: Path, tmp_path: Path) -> None:
    report = benchmark_report(folder, tmp_path / "report")
    # Of 72 cells: lexmae failed 6 and misses 6, mlm misses a seed of three tasks and two kinds.
    assert "54 of 72 cells are done, 6 failed, 12 missing" in report.summary
    assert report.failures is not None
    assert [len(tables) for tables in report.costs.values()] == [2, 2, 2]  # by task and kind
    seconds = [row[2].text for row in report.costs["insurance-1000"][0].rows]
    assert seconds == ["0", "50", "60", "60"]
    assert "The same for all: index bytes: 1,000, query ms: 1." in (
        report.costs["insurance-1000"][0].caption
    )
    assert len(report.failures.rows) == 6
    assert report.expected is not None
    assert {row[-1].text for row in report.expected.rows} == {"no"}
    here, lacking, far, *others = (row[-2].text for row in report.expected.rows)
    assert lacking == "–"  # a row of the paper that the grid lacks
    assert far == f"{here} (insurance)"  # the main result, of another collection
    assert others == ["–", "–", "–"]  # another measure, another collection, no main result
    (dense, sparse) = report.wins
    assert dense.starts == ("bow", "none")
    assert dense.won + dense.tied + dense.lost == 60
    example = dense.wins[0]
    assert example.relevant == (f"d{example.query[1:]}",)
    assert dense.queries[example.query].startswith("question")
    assert sparse.column.kind == "sparse"


def test_coverage_is_drawn_by_k_where_it_was_measured(tmp_path: Path) -> None:
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
        # Measured anew by the cells of every start, on a machine of its own.
        before = {"mlm": 0.24, "bow": 0.26}[result.cell.start]
        probes = {"probes": after, "probes_before": {"coverage/at_10": before}}
        cells.append(result.model_copy(update=probes))
    report = benchmark_report(write(tmp_path / "run", made, cells), settings={"texts": False})
    (curves,) = report.coverage  # all are pre-trained on one corpus
    assert (curves.corpus, curves.k) == ("insurance", (1, 10))
    # A seed counts once, with however many cells; the base was measured where others began.
    assert curves.starts["bow"][10] == pytest.approx(0.615)
    assert list(curves.starts) == ["none", "mlm", "bow"]
    assert curves.starts["none"] == pytest.approx({10: 0.25})
    assert curves.guides == {"most frequent tokens": {10: 0.2}, "most there is": {10: 0.9}}
    figure = next(one for one in report.figures if one.title == "Input token coverage")
    assert figure.plots[0].count("<polyline") == 5
    assert "bow, k 10: insurance: input token coverage by k 0.615" in figure.plots[0]
    assert "| c | bow | **.123** | **.615** |" in report.markdown()
    assert report.to_json()["coverage"][0]["starts"]["mlm"][10] == pytest.approx(0.315)
    titles = [one.title for one in report.figures]
    assert not any("at_10" in title for title in titles)


def test_one_seed_is_said(tmp_path: Path) -> None:
    made = protocol(["none", "bow"], seeds=[1])
    write(tmp_path / "run", made, results(made, {"bow": 0.1}, queries=50))
    report = benchmark_report(tmp_path / "run")
    assert (tmp_path / "run" / "report" / "report.html").is_file()
    assert "One seed: they hold for these models, not the methods" in report.tables[0].table.caption
    assert not any("one seed" in column for column in report.tables[0].table.columns)
    assert all(one.queries == {} for one in report.wins)  # the collection is not there
    assert "overage" not in (tmp_path / "run" / "report" / "report.html").read_text()


def test_what_too_few_runs_cannot_detect_is_not_said(tmp_path: Path) -> None:
    """Three queries and two seeds: less than one degree of freedom, or nothing to compare."""
    made = protocol(["none", "bow"], seeds=[1, 2], claims=CLAIMS)
    for queries, noise in ((1, 0.1), (3, 1e-4)):
        cells = results(made, {}, queries=queries, seed_noise=0.1, noise=noise, seed=3)
        report = benchmark_report(write(tmp_path / f"{queries}", made, cells))
        page = (tmp_path / f"{queries}" / "report" / "report.html").read_text(encoding="utf-8")
        assert "of inf" not in page
        assert "inf]" not in page
        assert "inf<" not in page
        assert "of inf" not in report.markdown()


def test_nothing_but_failures_is_a_report_too(tmp_path: Path) -> None:
    made = protocol(["none", "bow"], claims=CLAIMS)
    cells = [failed(result, "no memory") for result in results(made, {}, queries=2)]
    report = benchmark_report(write(tmp_path / "run", made, cells))
    assert "0 of 18 cells are done, 18 failed" in report.summary
    assert report.verdicts[0].reason == "no cell of one side is done"
    assert report.tables[0].table.rows[1][2].text == "failed"


def test_cells_that_the_protocol_no_longer_has_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = protocol(["none", "bow", "old"], seeds=[1, 2])
    write(tmp_path / "run", before, results(before, {}, queries=20))
    write(tmp_path / "run", protocol(["none", "bow"], seeds=[1]), [])
    report = benchmark_report(tmp_path / "run", settings={"texts": False})
    assert "6 of 6 cells are done." in report.summary
    assert "12 cells are of other starts, tasks or seeds" in capsys.readouterr().err


def test_a_task_with_seeds_of_its_own_is_whole_without_the_others(tmp_path: Path) -> None:
    task = next(iter(TASKS))
    tasks = {**TASKS, task: {**TASKS[task], "seeds": {"pretraining": [2]}}}
    made = protocol(["none", "bow"], tasks=tasks, seeds=[1, 2], claims=CLAIMS)
    done = [
        result for result in results(made, {}, queries=20)
        if result.cell.task != task or result.cell.pretraining_seed == 2
    ]  # fmt: skip
    report = benchmark_report(write(tmp_path / "run", made, done), settings={"texts": False})
    assert f"({task}: of their own): 10 of 10 cells are done." in report.summary
    assert not any("missing" in verdict.reason for verdict in report.verdicts)
    table = report.tables[0].table
    assert table.columns[2:] == (
        "insurance-1000 (one seed)", "insurance-all", "medicine-1000", "average", "best on"
    )  # fmt: skip
    assert "(one seed) are tested over queries only" in table.caption
    settings = {"texts": False, "over": "queries"}
    caption = benchmark_report(tmp_path / "run", settings=settings).tables[0].table.caption
    assert "They hold for these models, not the methods. " in caption  # all columns' letters
    assert "Columns marked (one seed) count neither" in caption
    for row in table.rows:  # what speaks of models alone is not averaged with what is of methods
        scores = [float(cell.text) for cell in row[3:6]]
        assert scores[2] == pytest.approx((scores[0] + scores[1]) / 2, abs=0.0011)
    assert sum(int(row[6].text) for row in table.rows) == 2


def test_kinds_are_counted_that_tasks_use(tmp_path: Path) -> None:
    tasks = {name: {**task, "kinds": ["dense"]} for name, task in TASKS.items()}
    made = protocol(["none", "bow"], ("dense", "sparse"), tasks=tasks)
    cells = [with_cost(one, pretraining_seconds=9.0) for one in results(made, {}, queries=3)]
    report = benchmark_report(write(tmp_path / "run", made, cells))
    assert report.summary.startswith("2 starts × 1 kind × 3 tasks")
    assert [len(tables) for tables in report.costs.values()] == [1, 1, 1]


def test_a_report_replaces_a_report_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "report"
    benchmark_report(folder, target, settings={"texts": False})
    benchmark_report(folder, target, settings={"texts": False, "over": "queries"})
    assert json.loads((target / "report.json").read_text())["settings"]["over"] == "queries"
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    with pytest.raises(OutputError, match="already holds something"):
        benchmark_report(folder, other)
    assert [file.name for file in other.iterdir()] == ["thesis.tex"]


def test_the_command_prints_tables_and_verdicts(folder: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "report")
    arguments = ["benchmark", "report", str(folder), "--output", target, "--set", "texts=false"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "dense, RR@10. Letters: significantly better" in " ".join(done.output.split())
    assert "above 0 at 6 of 6" in " ".join(done.output.split())


def test_bases_that_were_trained_again_are_said(tmp_path: Path) -> None:
    made = protocol(["none", "bow"])
    cells = results(made, {}, queries=20)

    def summary(origins: list[str | None]) -> str:
        named = [
            one.model_copy(update={"origin": origins[one.cell.pretraining_seed % len(origins)]})
            for one in cells
        ]
        folder = write(tmp_path / str(len(list(tmp_path.iterdir()))), made, named)
        benchmark_report(folder, settings={"texts": False})
        return (folder / "report" / "report.md").read_text(encoding="utf-8")

    assert "trained more than once" not in summary([None])
    assert "trained more than once" not in summary(["a"])
    assert "trained more than once (2 known weights): cells" in summary(["a", "b"])
    assert "(1 known weights; of 12 cells it is not known which)" in summary(["a", None, None])
    assert "Bases meet within 0 of the 9 runs" in summary(["a", "b"])
    cells[0] = cells[0].model_copy(update={"origin": "c"})
    cells[1:] = [one.model_copy(update={"origin": "a"}) for one in cells[1:]]
    write(tmp_path / "mixed", made, cells)
    benchmark_report(tmp_path / "mixed", settings={"texts": False})
    text = (tmp_path / "mixed" / "report" / "report.md").read_text(encoding="utf-8")
    assert "Bases meet within 1 of the 9 runs" in text


def test_cells_that_were_made_otherwise_are_said() -> None:
    made = protocol(["none", "bow"], seeds=[1, 2])
    common = {"base": "a", "tests": "b", "teacher": ""}
    cells = [
        one.model_copy(update={"parts": {**common, "start": f"{one.cell.start} {one.cell.task[0]} "
                                         f"{one.cell.pretraining_seed}",
                                         "fine-tuning": one.cell.name}})
        for one in results(made, {}, queries=3)
    ]  # fmt: skip

    def summary(part: str, **more: str) -> str:
        changed = cells[0].model_copy(update={"parts": {**cells[0].parts, part: "other"}, **more})
        return assemble("", Outcomes(made, [changed, *cells[1:]]), ReportSettings()).summary

    assert "are mixed" not in summary("fine-tuning")
    for part in ("base", "tests", "teacher", "start"):
        assert f"different settings or texts are mixed here ({part}): " in summary(part)
    assert "are mixed" not in summary("base", status="failed")


def test_hidden_files_are_no_cells(tmp_path: Path) -> None:
    """As macOS leaves them beside what is copied to another file system."""
    made = protocol(["none"])
    write(tmp_path, made, results(made, {}, queries=3))
    (tmp_path / "cells" / "._insurance-1000.dense.none.p1.f1.json").write_bytes(b"\x00\x05")
    assert "9 of 9 cells are done" in benchmark_report(tmp_path).summary


def test_starts_that_are_left_out_are_named() -> None:
    claim = {**CLAIMS["beats"], "higher": {"starts": ["bow", "mlm"]}}
    made = protocol(["none", "mlm", "bow"], claims={"it": claim})
    cells = [
        one for one in results(made, {}, queries=20)
        if one.cell.start != "mlm" or one.cell.pretraining_seed == 1
    ]  # fmt: skip
    report = assemble("", Outcomes(made, cells), ReportSettings())
    page = html_report(report)
    assert "Left out, with no or too few runs: dense, insurance-1000 (mlm); dense, " in page
    assert "dense, medicine-1000 (without mlm) |" in report.markdown()
    assert "a start with too few is left out and named" in page


def test_a_pretraining_counts_once(tmp_path: Path) -> None:
    made = protocol(["none", "bow"], ("dense", "sparse"))
    # Seed 2 was pre-trained again for one of its six cells.
    cells = [
        with_cost(
            one,
            pretraining_seconds=100.0 * one.cell.pretraining_seed
            + (50.0 if (one.cell.kind, one.cell.task) == ("sparse", "insurance-all")
               and one.cell.pretraining_seed == 2 else 0.0),
        )
        for one in results(made, {}, queries=20)
    ]  # fmt: skip
    outcomes = Outcomes(made, cells)
    assert outcomes.pretraining_seconds("bow", "insurance-1000") == [100, 200, 250, 300]
    assert outcomes.pretraining_seconds("bow", "medicine-1000") == [100, 200, 300]


def test_what_cannot_be_reported_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no benchmark"):
        benchmark_report(tmp_path)
    write(tmp_path / "run", protocol(["none"]), [])
    with pytest.raises(InputError, match="no run of the benchmark"):
        benchmark_report(tmp_path / "run")
    with pytest.raises(SettingsError, match="no start named 'bov'"):
        benchmark_report(folder, tmp_path / "report", settings={"pairs": ["bov:mlm"]})
    assert not (tmp_path / "report").exists()
