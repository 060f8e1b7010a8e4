"""What an adaptation says of itself: better, worse or neither, and what to do then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.collections.in_memory import documents_spec
from isthmus.evaluation import Report, compare_runs
from isthmus.records import Ranking, Run
from isthmus.workflows.adapt_report import ADAPTED, ORIGINAL, AdaptReport, question, read_report

QUERIES = [f"q{number}" for number in range(9)]
OUTPUT = Path("runs/notes")


def report(before: int, after: int, fused: int = 3, name: str = "notes") -> Report:
    """Systems that find the one right document of every query at a rank; BM25 changes nothing."""
    ranks = {ORIGINAL: before, ADAPTED: after, f"{ORIGINAL} + BM25": 3, f"{ADAPTED} + BM25": fused}
    runs = []
    for system, rank in ranks.items():
        ids = (*("a", "b", "c")[: rank - 1], "right")
        scores = (3.0, 2.0, 1.0, 0.0)[:rank]
        runs.append(Run(system, {query: Ranking(query, ids, scores) for query in QUERIES}))
    judged = {query: {"right": 1} for query in QUERIES}
    found = compare_runs(runs, judged, {"measures": ["RR@10"]}, pairs=question(ADAPTED, ranks))
    return found.model_copy(update={"name": name})


def adaptation(found: Report | None, merge: Any = None) -> AdaptReport:
    return AdaptReport(
        documents="notes/",
        survey="120 documents",
        model="mini",
        seed=42,
        merges={ADAPTED: merge},
        report=found,
    )


@pytest.mark.parametrize(
    ("ranks", "says", "recommended"),
    [
        (
            (2, 1),
            "0.500 before, 1.000 after (+0.500, 95% interval +0.500 to +0.500, corrected p = 0): "
            "significantly better",
            True,
        ),
        (
            (1, 4),
            "1.000 before, 0.250 after (-0.750, 95% interval -0.750 to -0.750, corrected p = 0): "
            "significantly WORSE",
            False,
        ),
        (
            (2, 2),
            "0.500 before, 0.500 after (+0.000, 95% interval +0.000 to +0.000, corrected p = 1): "
            "not significant",
            False,
        ),
        ((2, 2, 1), "0.333 before, 1.000 after (+0.667, ", True),
        ((2, 1, 4), "0.333 before, 0.250 after (-0.083, ", False),
    ],
)
def test_the_direction_of_a_change(ranks: Any, says: str, recommended: bool) -> None:
    found = adaptation(report(*ranks))
    text = "\n".join(found.sentences())
    assert "120 documents" in text
    assert "Seed 42" in text
    assert says in text
    assert found.recommended is recommended
    assert found.next_command(OUTPUT).startswith(
        "isthmus search runs/notes" if recommended else "isthmus index notes/ -m mini"
    )
    advice = found.sentences()[-1]
    assert advice.startswith("Use the adapted" if recommended else "Keep the original")


def test_what_is_lost_elsewhere_decides_too() -> None:
    other = report(1, 2, name="news")
    found = adaptation(report(2, 1).model_copy(update={"also": {"news": other}}))
    assert found.recommended is False
    assert "if you also search news" in found.sentences()[-1]
    harmless = adaptation(report(2, 1).model_copy(update={"also": {"news": report(2, 2)}}))
    assert harmless.recommended


def test_what_is_not_measured() -> None:
    found = adaptation(None)
    assert found.recommended is None
    assert "NOT MEASURED" in found.sentences()[-1]
    assert found.next_command(OUTPUT) == "isthmus search runs/notes 'a query'"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = adaptation(report(2, 1), merge={"share": 0.3, "change": 0.004})
    found.write(tmp_path)
    assert read_report(tmp_path) == found
    assert "30% trained and 70% original" in (tmp_path / "report.md").read_text()


def test_documents_in_memory_are_not_called_by_their_file() -> None:
    found = adaptation(None).model_copy(update={"documents": documents_spec(["a text"])})
    assert "mini adapted to documents in memory: 120 documents" in found.sentences()[0]
