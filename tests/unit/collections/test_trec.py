from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from isthmus.collections import Problems, read_judgements, read_run, write_run
from isthmus.collections.trec import holds_run
from isthmus.errors import InputError, OutputError
from isthmus.records import Ranking, Run


def write(folder: Path, content: str) -> Path:
    file = folder / "file"
    file.write_text(content, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "content",
    [
        "q1 0 d1 2\nq1 0 d2 -1\nq2\t0\td1\t0\n",
        "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t-1\nq2\td1\t0\n",
        "q1\td1\t2\r\nq1\td2\t-1\r\nq2\td1\t0\r\n",
    ],
)
def test_judgements_of_trec_and_beir(content: str, tmp_path: Path) -> None:
    assert read_judgements(write(tmp_path, content)) == {"q1": {"d1": 2, "d2": -1}, "q2": {"d1": 0}}


def test_ids_with_spaces_survive_in_tab_separated_judgements(tmp_path: Path) -> None:
    content = "query-id\tcorpus-id\tscore\nq 1\ta file.txt\t1\n"
    assert read_judgements(write(tmp_path, content)) == {"q 1": {"a file.txt": 1}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1 0 d1", "broken line: the relevance 'd1' is not a whole number"),
        ("q1 d1", "broken line: 2 columns where three (BEIR) or four (TREC) are expected"),
        ("q1 0 d1 1 tag", "broken line: 5 columns"),
        ("q1 0 d1 high", "broken line: the relevance 'high' is not a whole number"),
        ("q0 0 d0 2", "duplicate judgement: query 'q0' and document 'd0' are judged 2, but were"),
    ],
)
def test_bad_judgements(line: str, message: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"q0 0 d0 1\n{line}\n")
    with pytest.raises(InputError) as caught:
        read_judgements(file)
    assert message in caught.value.what
    assert f"{file}:2" in caught.value.what
    assert read_judgements(file, Problems("skip")) == {"q0": {"d0": 1}}


def test_judgements_of_unknown_queries(tmp_path: Path) -> None:
    file = write(tmp_path, "q1 0 d1 1\nq9 0 d1 1\n")
    with pytest.raises(InputError) as caught:
        read_judgements(file, known_queries={"q1"})
    assert "unknown query: there is no query 'q9' in the collection" in caught.value.what
    assert f"{file}:2" in caught.value.what
    problems = Problems("skip")
    assert read_judgements(file, problems, known_queries={"q1"}) == {"q1": {"d1": 1}}
    assert problems.counts == {"unknown query": 1}


def test_runs_are_ordered_by_score_with_ties_by_id(tmp_path: Path) -> None:
    file = write(tmp_path, "q Q0 c 1 1.5 bm25\nq Q0 b 2 2.5 bm25\nq Q0 a 3 1.5 bm25\n")
    run = read_run(file)
    assert run.name == "bm25"
    assert run.rankings["q"] == Ranking("q", ("b", "a", "c"), (2.5, 1.5, 1.5))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 d 2 1.0", "broken line: 5 columns where six are expected: 'q Q0 d 2 1.0'"),
        ("q Q0 d 2 1.0 my tag", "broken line: 7 columns"),
        ("q Q0 d 2 high tag", "broken line: the score 'high' is not a finite number"),
        ("q Q0 d 2 nan tag", "broken line: the score 'nan' is not a finite number"),
        ("q Q0 a 2 1.0 tag", "duplicate id: document 'a' is in the ranking of query 'q' twice"),
    ],
)
def test_bad_run_lines(line: str, message: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"q Q0 a 1 2.0 tag\n{line}\n")
    with pytest.raises(InputError) as caught:
        read_run(file)
    assert message in caught.value.what
    assert f"{file}:2" in caught.value.what
    assert read_run(file, Problems("skip")).rankings["q"].document_ids == ("a",)


def test_written_scores_strictly_decrease_even_in_32_bits(tmp_path: Path) -> None:
    scores = (2.0, 1.0 + 1e-12, 1.0, 1.0, 0.0, 0.0)
    ids = ("b", "z", "a", "c", "y", "x")
    file = tmp_path / "new" / "run"
    write_run(file, Run("my run", {"q": Ranking("q", ids, scores)}))
    rows = [line.split() for line in file.read_text().splitlines()]
    assert [row[2] for row in rows] == ["b", "z", "a", "c", "x", "y"]
    assert [row[3] for row in rows] == list("123456")
    assert {row[5] for row in rows} == {"my_run"}
    narrow = np.array([row[4] for row in rows], dtype=np.float32)
    assert np.all(np.diff(narrow) < 0)
    assert abs(float(narrow[-1])) < 1e-20
    assert read_run(file).rankings["q"].document_ids == ("b", "z", "a", "c", "x", "y")


def test_trec_eval_sees_tied_documents_in_our_order(tmp_path: Path) -> None:
    # trec_eval puts the later id first among equal scores: the reverse of our rule.
    ids = tuple(f"d{i}" for i in range(9))
    write_run(tmp_path / "run", Run("tied", {"q": Ranking("q", ids, (1.0,) * 9)}))
    run = {"q": dict(read_run(tmp_path / "run").rankings["q"])}
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="trec_eval has no wheel for this chip")
    evaluator = pytrec_eval.RelevanceEvaluator({"q": {"d2": 1}}, {"recip_rank"})
    assert evaluator.evaluate(run)["q"]["recip_rank"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("query", "document", "named"),
    [("q", "", "the id ''"), ("q 1", "d", "the id 'q 1'"), ("q", "a\u2003b", "has white space")],
)
def test_ids_that_a_run_file_cannot_hold(
    query: str, document: str, named: str, tmp_path: Path
) -> None:
    with pytest.raises(OutputError, match=named):
        write_run(tmp_path / "run", Run("r", {query: Ranking(query, (document,), (1.0,))}))
    assert not (tmp_path / "run").exists()


def test_a_file_that_holds_a_run_already(tmp_path: Path) -> None:
    run = Run("r", {"q": Ranking("q", ("a%20b", "c"), (2.0, 1.0))})
    assert not holds_run(tmp_path / "run", run)
    write_run(tmp_path / "run", run)
    assert read_run(tmp_path / "run") == run
    assert holds_run(tmp_path / "run", run)
    for other in ({"q": Ranking("q", ("c",), (2.0,))}, {}, {"x": Ranking("x", ("c",), (2.0,))}):
        with pytest.raises(OutputError, match="already holds another run"):
            holds_run(tmp_path / "run", Run("r", other))


@pytest.mark.parametrize("columns", [["q 1", "my notes.md", "2"], ["q 1", "0", "my notes.md", "2"]])
def test_judged_ids_may_hold_spaces_between_tabs(columns: list[str], tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("\t".join(columns) + "\n", encoding="utf-8")
    assert read_judgements(tmp_path / "qrels") == {"q 1": {"my notes.md": 2}}


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 1e39])
def test_scores_that_are_no_numbers_are_not_written(score: float, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="not all finite"):
        write_run(tmp_path / "run", Run("r", {"q": Ranking("q", ("d",), (score,))}))
