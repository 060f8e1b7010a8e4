"""Interrupted anywhere and run again, building gives the index of an uninterrupted run."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from tests.crashes import contents
from tests.factories import described, documents
from tests.index_bytes import verify

from isthmus.errors import OutputError
from isthmus.indexes.construction import already_built
from isthmus.indexes.documents import blocks
from isthmus.indexes.inverted.builder import InvertedBuilder
from isthmus.indexes.manifest import Description, InvertedSettings, workplace

SIZE = 40
DESCRIPTION = described("inverted", dimension=SIZE)
DOCUMENTS = documents()
ROWS = scipy.sparse.random(50, SIZE, 0.3, format="csr", random_state=np.random.default_rng(0))
GATHERED = ("lengths", "terms", "weights")


def build(folder: Path, description: Description = DESCRIPTION) -> int:
    """What the verb does; the number of documents that did not have to be done again."""
    if already_built(folder, description):
        return len(DOCUMENTS)
    with InvertedBuilder(folder, description, block=256) as builder:
        resumed = builder.rows
        for block in blocks(DOCUMENTS[resumed:], 20):
            builder.add(block, ROWS[builder.rows : builder.rows + len(block)])
        builder.finish({})
    return resumed


def test_what_a_crash_left_half_written_is_cut_off(tmp_path: Path) -> None:
    build(tmp_path / "whole")
    with InvertedBuilder(tmp_path / "torn", DESCRIPTION, block=256) as builder:
        builder.add(DOCUMENTS[:20], ROWS[:20])
    for name in (*GATHERED, "index/documents.arrow"):
        with (workplace(tmp_path / "torn") / name).open("ab") as stream:
            stream.write(b"\x00garbage" * 1000)
    assert build(tmp_path / "torn") == 20
    assert contents(tmp_path / "torn") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", [*GATHERED, "index/documents.arrow"])
@pytest.mark.parametrize("lost", [True, False])
def test_files_shorter_than_recorded_start_anew(tmp_path: Path, name: str, lost: bool) -> None:
    with InvertedBuilder(tmp_path / "index", DESCRIPTION) as builder:
        builder.add(DOCUMENTS[:20], ROWS[:20])
    file = workplace(tmp_path / "index") / name
    file.unlink() if lost else os.truncate(file, 10)
    assert build(tmp_path / "index") == 0
    verify(tmp_path / "index")


@pytest.mark.parametrize("change", [{"terms": 3}, {"scale": 50.0}, {"weights": "float"}])
def test_other_settings_are_never_mixed_in(tmp_path: Path, change: dict[str, object]) -> None:
    settings = InvertedSettings.parse(change, where="test")
    other = DESCRIPTION.model_copy(update={"inverted": settings})
    with InvertedBuilder(tmp_path / "index", DESCRIPTION) as builder:
        builder.add(DOCUMENTS[:20], ROWS[:20])
    assert build(tmp_path / "index", other) == 0
    with pytest.raises(OutputError, match="it differs in inverted"):
        build(tmp_path / "index")
