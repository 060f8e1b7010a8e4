"""What an adaptation says of itself: better, worse or neither, and what was not measured."""

from __future__ import annotations

import pytest

from isthmus.evaluation import Report, compare_runs
from isthmus.records import Ranking, Run
from isthmus.workflows.before_after import AFTER, BEFORE, verdict

QUERIES = [f"q{number}" for number in range(9)]


def report(ranks: dict[str, int]) -> Report:
    """Systems that find the one right document of every query at a rank."""
    runs = []
    for name, rank in ranks.items():
        ids = (*("a", "b", "c")[: rank - 1], "right")
        scores = (3.0, 2.0, 1.0, 0.0)[:rank]
        runs.append(Run(name, {query: Ranking(query, ids, scores) for query in QUERIES}))
    return compare_runs(runs, {query: {"right": 1} for query in QUERIES}, {"measures": ["RR@10"]})


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (2, 1, "0.500 before, 1.000 after (+0.500, p 0 after correction): better."),
        (1, 4, "1.000 before, 0.250 after (-0.750, p 0 after correction): WORSE: use the encoder"),
        (2, 2, "0.500 before, 0.500 after (+0.000, p 1 after correction): NO SIGNIFICANT CHANGE."),
    ],
)
def test_the_direction_of_a_change(before: int, after: int, says: str, order: int) -> None:
    ranks = {BEFORE: before, AFTER: after, f"{BEFORE} + BM25": 3, f"{AFTER} + BM25": 1}
    found = verdict({AFTER: None}, report(dict(list(ranks.items())[::order])), None)
    assert found[0] == "adapted: all of what was learnt is taken over."
    assert found[1].startswith(f"adapted: RR@10 {says}")
    assert found[2].startswith("adapted + BM25: RR@10 0.333 before, 1.000 after")
    assert len(found) == 3


def test_what_is_not_measured_and_what_is_lost_elsewhere() -> None:
    _, unknown, elsewhere = verdict({AFTER: None}, None, report({BEFORE: 1, AFTER: 2}))
    assert "NOT MEASURED" in unknown
    assert elsewhere.startswith("On the guard collection, adapted: RR@10 1.000 before, 0.500 after")
    assert "WORSE" in elsewhere
