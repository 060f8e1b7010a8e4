"""A table of scores answers as a dictionary would; what was flushed is there after a kill."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.finetuning.scores import ENTRY, ScoreStore, ScoreTable, digests

PAIRS = st.dictionaries(
    st.tuples(st.sampled_from("abcde"), st.integers(0, 2**31 - 1) | st.integers(0, 5)),
    st.floats(-1e6, 1e6, width=32),
    max_size=30,
)


def entries(pairs: dict[tuple[str, int], float]) -> np.ndarray:
    table = np.empty(len(pairs), ENTRY)
    table["query"] = digests([query for query, _ in pairs])
    table["row"] = [row for _, row in pairs]
    table["score"] = list(pairs.values())
    return table


@given(PAIRS, st.lists(st.integers(-1, 6) | st.just(2**31 - 1), min_size=1, max_size=8))
def test_as_a_dictionary(pairs: dict[tuple[str, int], float], columns: list[int]) -> None:
    asked = [*columns, *(row for _, row in pairs)]
    queries = list("cxab")  # in no order, one of them unknown
    rows = np.array([asked] * len(queries), dtype=np.int32)
    found = ScoreTable(entries(pairs)).look_up(digests(queries), rows)
    expected = [[pairs.get((query, row), np.nan) for row in asked] for query in queries]
    np.testing.assert_array_equal(found, np.array(expected, dtype=np.float32))


def test_of_a_pair_that_comes_twice_the_latest_counts() -> None:
    table = np.concatenate([entries({("a", 1): 1.0}), entries({("a", 1): 2.0, ("a", 0): 3.0})])
    found = ScoreTable(table).look_up(digests(["a"]), np.array([[1, 0]], dtype=np.int32))
    assert found.tolist() == [[2.0, 3.0]]


def test_a_store_keeps_what_was_flushed(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    one, other = ScoreStore(folder), ScoreStore(folder)
    assert not folder.exists(), "nothing is written before there is something to write"
    ask = digests(["a", "b"]), np.array([[0, 8, -1]] * 2, dtype=np.int32)
    one.add(digests(["a", "b"]), np.array([0, 8]), np.array([0.5, -0.5], dtype=np.float32))
    assert np.isnan(ScoreStore(folder).look_up(*ask)).all(), "not yet"
    one.flush()
    one.flush()
    other.add(digests(["a"]), np.array([8]), np.array([9.0], dtype=np.float32))
    other.flush()  # of another process: nothing of the first is lost
    (folder / ".torn.partial").write_bytes(b"half a file")
    found = ScoreStore(folder).look_up(*ask)
    np.testing.assert_array_equal(found, [[0.5, 9.0, np.nan], [np.nan, -0.5, np.nan]])
    np.testing.assert_array_equal(one.look_up(*ask)[:, :2], [[0.5, np.nan], [np.nan, -0.5]])
    assert len(list(folder.glob("*.npy"))) == 2


def test_it_writes_by_itself_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ScoreStore(tmp_path)
    monkeypatch.setattr("isthmus.finetuning.scores.SECONDS", 0.0)
    store.add(digests(["a"]), np.array([7]), np.array([0.5], dtype=np.float32))
    assert len(list(tmp_path.glob("*.npy"))) == 1
