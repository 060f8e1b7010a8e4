"""What must hold for any run and any file, not only for those one thinks of."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isthmus.collections import read_run, write_run
from isthmus.collections.files import lines
from isthmus.collections.problems import Problems
from isthmus.records import Ranking, Run

IDS = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=8).filter(
    lambda text: len(text.split()) == 1
)
SCORES = st.floats(-1e37, 1e37, allow_nan=False) | st.sampled_from([0.0, 1.0, 1.0 + 1e-9, 1e-45])
RANKINGS = st.dictionaries(IDS, SCORES, min_size=1, max_size=30)


@given(st.dictionaries(IDS, RANKINGS, min_size=1, max_size=3))
def test_writing_and_reading_a_run_keeps_every_ranking_in_order(
    scores: dict[str, dict[str, float]],
) -> None:
    run = Run("run", {query: Ranking.sorted(query, found) for query, found in scores.items()})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run"
        write_run(file, run)
        again = read_run(file)
    assert list(again.rankings) == list(run.rankings)
    for query, ranking in run.rankings.items():
        assert again.rankings[query].document_ids == ranking.document_ids
        narrow = np.array(again.rankings[query].scores, dtype=np.float32)
        assert np.all(narrow[1:] < narrow[:-1])
        np.testing.assert_allclose(
            again.rankings[query].scores, ranking.scores, rtol=1e-5, atol=1e-28
        )


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]))))
def test_lines_come_back_as_written(written: list[str]) -> None:
    written = [*written, "end"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        file.write_text("".join(f"{line}\r\n" for line in written), encoding="utf-8", newline="")
        found = [line for _, line in lines(file, Problems())]
    expected = [line for line in written if line and not line.isspace()]
    if expected[0] == written[0]:
        expected[0] = expected[0].removeprefix("\ufeff")
    assert found == [line for line in expected if line]
