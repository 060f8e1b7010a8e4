"""Several collections in one report: averages, best-on counts, and letters of each on its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.factories import write_collection
from typer.testing import CliRunner

import isthmus
from isthmus.cli import app
from isthmus.errors import SettingsError
from isthmus.evaluation import Report, summarise
from isthmus.evaluation.first_hits import differing, examples
from isthmus.evaluation.suite import SuiteReport
from isthmus.records import Ranking, Run

FAST = {"bootstrap_samples": 10, "measures": ("RR@10",)}


def report(**scores: list[float]) -> Report:
    by_query = {
        system: {"RR@10": {f"q{n}": value for n, value in enumerate(values)}}
        for system, values in scores.items()
    }
    return summarise(by_query, FAST)


def test_averages_and_counts() -> None:
    suite = SuiteReport(
        {
            "large": report(one=[0.5] * 8, two=[0.25] * 8, three=[0.5] * 8),
            "small": report(one=[0.2, 0.0], two=[1.0, 0.0], three=[0.1, 0.1]),
            "other": report(one=[0.0, 0.4], two=[0.1, 0.1], three=[0.2, 0.1]),
        }
    )
    assert suite.averages("RR@10") == pytest.approx(
        {
            "one": (0.5 + 0.1 + 0.2) / 3,
            "two": (0.25 + 0.5 + 0.1) / 3,
            "three": (0.5 + 0.1 + 0.15) / 3,
        }
    )
    assert suite.best_on("RR@10") == {"one": 2, "two": 1, "three": 1}, "a shared one is each's"
    table = suite.table("RR@10")
    assert table.columns == ("#", "system", "large", "small", "other", "average", "best on")
    rows = {row[1].text: row for row in table.rows}
    assert [cell.text for cell in rows["one"][2:]] == ["0.500", "0.100", "0.200", "0.267", "2 of 3"]
    assert [cell.text for row in table.rows for cell in row if cell.best] == [
        "0.500", "0.200", "2 of 3", "0.500", "0.283", "0.500",
    ]  # fmt: skip
    assert rows["one"][2].letters == "b", "on this collection alone"
    assert rows["one"][3].letters == ""
    assert "Judged queries: large 8, small 2, other 2." in table.caption
    assert "On each collection, letters: significantly better" in table.caption
    saved = json.loads(suite.to_json())
    assert saved["best_on"]["RR@10"]["one"] == 2
    assert saved["reports"]["small"]["means"]["RR@10"]["two"] == 0.5


def test_first_hits_that_differ() -> None:
    def run(name: str, **firsts: str) -> Run:
        rankings = {q: Ranking(q, (d, "z"), (2.0, 1.0)) for q, d in firsts.items()}
        return Run(name, rankings)

    runs = [run("one", q1="a", q2="b", q3="c", q4="q4"), run("two", q1="a", q2="x", q3="y")]
    scores = {
        "one": {"q1": 1.0, "q2": 0.5, "q3": 1.0, "q4": 0.5},
        "two": {"q1": 0.1, "q2": 0.4, "q3": 0.0, "q4": 0.0},
    }
    judged = {"q1": {"a": 1}, "q2": {"b": 0, "x": 2}, "q3": {}, "q4": {"z": 1}}
    found = examples(runs, judged, scores, "RR@10", 9, drop_self=True)
    # The same first document of q1 is no example, whatever comes after it.
    assert [one.query for one in found] == ["q3", "q4", "q2"]
    hits = {one.query: one.hits for one in found}
    assert hits["q4"]["one"].document == "z", "not the query itself"
    assert hits["q4"]["two"] is None
    shown = [cell.text for row in found[2].table().rows for cell in row[2:4]]
    assert shown == ["not relevant (0)", "b", "relevant (2)", "x"]
    assert found[0].table().rows[0][2].text == "not judged"
    assert differing({"one": {}, "two": {}}, scores, 5) == []


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two collections of one topic each; the second's first query is a document's id too."""
    folder = tmp_path_factory.mktemp("suite")
    made = []
    for name, words in {"cats": "tiger lion bear wolf", "snow": "snow ice hail rain"}.items():
        texts = {f"{name}{n}": f"{word} " * (n + 1) + words for n, word in enumerate(words.split())}
        asked = {f"q{n}": word for n, word in enumerate(words.split())}
        judged = {"test": [(f"q{n}", f"{name}{n}") for n in range(4)]}
        write_collection(folder / name, texts, asked, judged)
        made.append(folder / name)
    return made


def test_the_command_on_two_collections(collections: list[Path], tmp_path: Path) -> None:
    words = [word for one in collections for word in ("--collection", str(one))]
    words += ["--models", "bm25", "bm25+bm25", "--output", str(tmp_path / "suite"), "--json", "-q"]
    words += ["--set", "bootstrap_samples=10", "--measures", "RR@10"]
    ended = CliRunner().invoke(app, ["evaluate", *words])
    assert ended.exit_code == 0, ended.output
    suite = json.loads(ended.stdout)
    alone = isthmus.evaluate(collection=str(collections[1]), models="bm25", settings=FAST)
    assert suite["reports"]["snow"]["means"]["RR@10"]["bm25"] == alone.means["RR@10"]["bm25"] == 1
    assert suite["best_on"]["RR@10"] == {"bm25": 2, "bm25+bm25": 2}
    folder = tmp_path / "suite"
    assert json.loads((folder / "isthmus.json").read_text())["complete"]
    assert json.loads((folder / "suite.json").read_text()) == suite
    assert "| average | best on |" in (folder / "table.md").read_text(encoding="utf-8")
    assert (folder / "cats" / "runs" / "bm25.trec").is_file()
    again = CliRunner().invoke(app, ["evaluate", *words])
    assert again.stdout == ended.stdout
    with pytest.raises(SettingsError, match="a run answers the queries of one collection"):
        isthmus.evaluate_suite(
            [str(one) for one in collections], [str(folder / "cats" / "runs" / "bm25.trec")]
        )


def test_examples_have_texts(collections: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other.trec"
    lines = [f"q{n} Q0 cats{(n + 1) % 4} 1 1.0 other" for n in range(3)] + ["q3 Q0 cats3 1 1 other"]
    other.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = isthmus.evaluate(
        [other], collection=str(collections[0]), models="bm25", examples=2,
        output=tmp_path / "report", settings=FAST,
    )  # fmt: skip
    assert [one.query for one in found.examples] == ["q0", "q1"]
    first = found.examples[0]
    assert (first.text, first.hits["bm25"].document) == ("tiger", "cats0")
    assert first.hits["other"].judgement is None
    assert first.hits["other"].text.startswith("lion lion tiger lion")
    assert "lion lion tiger lion" in (tmp_path / "report" / "examples.md").read_text(
        encoding="utf-8"
    )
    assert "not judged" in str(found)
    assert Report.from_json(found.to_json()) == found
