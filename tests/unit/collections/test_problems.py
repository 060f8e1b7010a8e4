from __future__ import annotations

import pytest

from isthmus.collections import Problems
from isthmus.errors import InputError


def test_refusing_raises_at_once_with_the_place() -> None:
    with pytest.raises(InputError) as caught:
        Problems().report("duplicate id", "a.jsonl:3", "'d1' again", "remove it")
    error = caught.value
    assert "duplicate id: 'd1' again" in error.what
    assert "a.jsonl:3" in error.what
    assert error.fix.startswith("remove it")


def test_skipping_counts_every_case_and_keeps_the_first_five() -> None:
    problems = Problems("skip")
    for line in range(7):
        problems.report("broken line", f"a:{line}", "not JSON", "correct it")
    problems.report("empty text", "a:9", "no text", "remove it")
    assert problems.counts == {"broken line": 7, "empty text": 1}
    assert problems.examples["broken line"] == [f"a:{line}: not JSON" for line in range(5)]
    assert problems.summary().splitlines() == [
        "skipped 7 x broken line: a:0: not JSON; a:1: not JSON; a:2: not JSON; a:3: not JSON; "
        "a:4: not JSON; and 2 more",
        "skipped 1 x empty text: a:9: no text",
    ]


def test_no_problem_has_no_summary() -> None:
    assert Problems("skip").summary() == ""


def test_a_second_reading_of_a_source_replaces_the_first() -> None:
    problems = Problems("skip")
    for _ in range(2):
        reading = problems.reading("a.jsonl")
        reading.report("empty text", "a.jsonl:1", "no text", "remove it")
    problems.reading("b.jsonl").report("empty text", "b.jsonl:1", "no text", "remove it")
    assert problems.counts == {"empty text": 2}
    assert problems.examples["empty text"] == ["a.jsonl:1: no text", "b.jsonl:1: no text"]
