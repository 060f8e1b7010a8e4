"""A report: what every format says, what is missing, and that it can be made of its own results."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.unit.benchmarks.made_runs import TASKS, protocol, results, with_cost, write

from isthmus.benchmarks.report.report import report
from isthmus.benchmarks.report.results import read_results
from isthmus.benchmarks.report.scores import Grid
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.benchmarks.report.verdicts import verdicts
from isthmus.errors import InputError, OutputError

HOSTILE = '<script>alert(1)</script> & "x" $a$ | \\input{x} ]]> \x1b[31m'
CLAIMS = {
    "beats": {
        "statement": f"bow beats none {HOSTILE}",
        "higher": {"methods": ["bow"]},
        "lower": {"methods": ["none"]},
    },
    "lacking": {
        "statement": "lexmae beats none",
        "higher": {"methods": ["lexmae"]},
        "lower": {"methods": ["none"]},
    },
}
EXPECTED = [
    {
        "paper": "theirs", "table": "1", "retriever": "dense", "task": "insurance-1000",
        "columns": ["insurance RR@10", "insurance nDCG@10"],
        "rows": {"bow": [0.4, None], "absent": [0.3, None]},
    },
    {
        "paper": "theirs", "table": "2", "retriever": "dense", "task": "insurance-1000",
        "columns": ["msmarco RR@10", "msmarco R@50"], "rows": {"bow": [0.4, 0.5]},
    },
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """54 of 72 runs: lexmae lacks tasks, mlm a seed."""
    made = protocol(
        ["none", "mlm", "bow", "lexmae"], ("dense", "sparse"), zero_shot=["flights"],
        claims=CLAIMS, expected=EXPECTED, measures=["RR@10", "nDCG@10"],
    )  # fmt: skip
    done = []
    for result in results(made, {"bow": 0.08}, queries=60, seed_noise=0.002, noise=0.05):
        run = result.run
        if (run.method, run.pretraining_seed) == ("mlm", 3):
            continue
        if run.method == "lexmae" and run.task in ("medicine-1000", "insurance-all"):
            continue
        seconds = {"none": 0.0, "mlm": 50.0}.get(run.method, 60.0)
        size = 1000.0 if run.retriever == "dense" else 700.0
        done.append(
            with_cost(
                result, pretraining_seconds=seconds, index_bytes=size, query_seconds=size / 1e6
            )
        )
    return write(tmp_path_factory.mktemp("made") / "run", made, done, f"grid {HOSTILE}")


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
    found = report(folder, tmp_path / "report")
    texts = {file.name: file for file in (tmp_path / "report").iterdir()}
    assert texts.keys() == {
        "isthmus.json", "report.html", "report.md", "report.json", "results.parquet"
    }  # fmt: skip
    assert texts["report.md"].read_text(encoding="utf-8") == found.markdown()
    decisions = {"beats": "supported", "lacking": "incomplete"}
    said = json.loads(texts["report.json"].read_text())
    assert {one["name"]: one["decision"] for one in said["verdicts"]} == decisions
    assert json.loads(texts["isthmus.json"].read_text())["results"] == {"verdicts": decisions}
    assert "supported" in repr(found)
    for line in found.markdown().splitlines():
        assert "<script" not in line.replace("\\<script", "")


def test_the_page_needs_nothing_else_and_shows_texts_as_texts(folder: Path, tmp_path: Path) -> None:
    report(folder, tmp_path / "report")
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
    assert "missing" in rows["lexmae", "d"]
    assert any("2/3 runs" in cell for cell in rows["mlm", "b"])
    assert text.count("<svg") == 1  # the verdicts


def test_what_is_missing_is_counted(folder: Path, tmp_path: Path) -> None:
    found = report(folder, tmp_path / "report")
    assert "54 of 72 runs are done" in found.summary
    assert len(found.costs) == 6  # by task and kind
    assert [row[2].text for row in found.costs[0].rows] == ["0", "50", "60", "60"]
    assert [row[4].text for row in found.costs[0].rows] == ["1"] * 4  # milliseconds
    assert found.expected is not None
    here, lacking, far, other = (row[-1].text for row in found.expected.rows)
    assert lacking == "–"  # a row of the paper that the grid lacks
    assert far == f"{here} (insurance)"  # the main result, of another collection
    assert other == "–"  # no main result
    best = [[cell.best for cell in row[2:5]] for row in found.scores[0].rows]
    assert best == [[False] * 3, [False] * 3, [True] * 3, [False] * 3]


def test_a_report_is_made_again_from_its_results(folder: Path, tmp_path: Path) -> None:
    first = report(folder, tmp_path / "first")
    again = report(tmp_path / "first" / "results.parquet", tmp_path / "again")
    assert again.verdicts == first.verdicts
    # Of the first measure alone there is the score of every query.
    assert again.scores == first.scores[: len(again.scores)]
    assert again.costs == first.costs
    kept = (tmp_path / "again" / "results.parquet").read_bytes()
    assert kept == (tmp_path / "first" / "results.parquet").read_bytes()


def test_a_file_without_results_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "results.parquet"
    file.write_text("no table")
    with pytest.raises(InputError, match="holds no results of a benchmark"):
        report(file, tmp_path / "report")


def test_one_seed_is_said_and_what_cannot_be_computed_is_null(tmp_path: Path) -> None:
    """One query has no deviation: no interval, no power."""
    made = protocol(["none", "bow"], seeds=[1], claims={"it": CLAIMS["beats"]})
    found = report(write(tmp_path / "run", made, results(made, {}, queries=1)))
    assert found.verdicts[0].reason.startswith("one seed")
    written = (tmp_path / "run" / "report" / "report.json").read_text(encoding="utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    (verdict,) = json.loads(written, parse_constant=refuse)["verdicts"]
    assert verdict["overall"]["interval"] is None
    assert "inf" not in found.markdown().split("## How")[0].replace("insurance", "")


def test_runs_that_the_protocol_no_longer_has_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = protocol(["none", "bow", "old"], seeds=[1, 2])
    write(tmp_path / "run", before, results(before, {}, queries=20))
    write(tmp_path / "run", protocol(["none", "bow"], seeds=[1]), [])
    (tmp_path / "run" / "runs" / "._hidden.json").write_bytes(b"\x00\x05")  # as macOS leaves them
    found = report(tmp_path / "run")
    assert "6 of 6 runs are done." in found.summary
    assert "12 runs are not in the protocol" in capsys.readouterr().err


def test_a_task_with_seeds_of_its_own_is_whole_without_the_others(tmp_path: Path) -> None:
    task = next(iter(TASKS))
    tasks = {**TASKS, task: {**TASKS[task], "seeds": {"pretraining": [2]}}}
    made = protocol(["none", "bow"], tasks=tasks, seeds=[1, 2], claims={"it": CLAIMS["beats"]})
    done = [
        result for result in results(made, {}, queries=20)
        if result.run.task != task or result.run.pretraining_seed == 2
    ]  # fmt: skip
    found = report(write(tmp_path / "run", made, done))
    assert "10 of 10 runs are done." in found.summary
    assert found.verdicts[0].decision != "incomplete"


def test_a_report_replaces_a_report_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "report"
    report(folder, target)
    report(folder, target, settings={"alpha": 0.01})
    assert json.loads((target / "report.json").read_text())["settings"]["alpha"] == 0.01
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    with pytest.raises(OutputError, match="already holds something"):
        report(folder, other)
    assert [file.name for file in other.iterdir()] == ["thesis.tex"]


def test_published_results_make_their_reports() -> None:
    """Of their headers every file is read; of the smallest, the verdicts too."""
    files = sorted((Path(__file__).parents[3] / "docs" / "results").glob("*.parquet"))
    assert [read_results(file)[0] for file in files] == [file.stem for file in files]
    name, made, done = read_results(files[0])
    found = verdicts(Grid(made, done), ReportSettings())
    decisions = {"pmi-masking": "inconclusive", "neighbours": "inconclusive"}
    assert (name, {one.name: one.decision for one in found}) == ("ablations-small", decisions)
