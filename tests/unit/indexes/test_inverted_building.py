"""Interrupted anywhere and run again, building gives the index of an uninterrupted run."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from tests.crashes import contents
from tests.index_bytes import verify

from isthmus.errors import InputError, OutputError
from isthmus.indexes.construction import already_built
from isthmus.indexes.documents import blocks
from isthmus.indexes.inverted.builder import InvertedBuilder
from isthmus.indexes.manifest import Description, InvertedSettings, workplace
from isthmus.records import Document

SIZE = 40
GATHERED = ("lengths", "terms", "weights")


@pytest.fixture
def description(dense_description: Description) -> Description:
    changes = {"kind": "inverted", "dimension": SIZE, "dtype": None, "inverted": InvertedSettings()}
    return dense_description.model_copy(update=changes)


@pytest.fixture
def rows() -> scipy.sparse.csr_matrix:
    generator = np.random.default_rng(0)
    return scipy.sparse.random(50, SIZE, 0.3, format="csr", random_state=generator)


def build(
    folder: Path,
    description: Description,
    source: list[Document],
    rows: scipy.sparse.csr_matrix,
) -> int:
    """What the verb does; the number of documents that did not have to be done again."""
    if already_built(folder, description):
        return len(source)
    with InvertedBuilder(folder, description, block=256) as builder:
        resumed = builder.rows
        for block in blocks(source[resumed:], 20):
            builder.add(block, rows[builder.rows : builder.rows + len(block)])
        builder.finish({})
    return resumed


def test_what_a_crash_left_half_written_is_cut_off(
    tmp_path: Path,
    description: Description,
    documents: list[Document],
    rows: scipy.sparse.csr_matrix,
) -> None:
    build(tmp_path / "whole", description, documents, rows)
    with InvertedBuilder(tmp_path / "torn", description, block=256) as builder:
        builder.add(documents[:20], rows[:20])
    for name in (*GATHERED, "index/documents.arrow"):
        with (workplace(tmp_path / "torn") / name).open("ab") as stream:
            stream.write(b"\x00garbage" * 1000)
    assert build(tmp_path / "torn", description, documents, rows) == 20
    assert contents(tmp_path / "torn") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", [*GATHERED, "index/documents.arrow"])
@pytest.mark.parametrize("lost", [True, False])
def test_files_shorter_than_recorded_start_anew(
    tmp_path: Path,
    description: Description,
    documents: list[Document],
    rows: scipy.sparse.csr_matrix,
    name: str,
    lost: bool,
) -> None:
    with InvertedBuilder(tmp_path / "index", description) as builder:
        builder.add(documents[:20], rows[:20])
    file = workplace(tmp_path / "index") / name
    file.unlink() if lost else os.truncate(file, 10)
    assert build(tmp_path / "index", description, documents, rows) == 0
    verify(tmp_path / "index")


@pytest.mark.parametrize("change", [{"terms": 3}, {"scale": 50.0}, {"weights": "float"}])
def test_other_settings_are_never_mixed_in(
    tmp_path: Path,
    description: Description,
    documents: list[Document],
    rows: scipy.sparse.csr_matrix,
    change: dict[str, object],
) -> None:
    settings = InvertedSettings.parse(change, where="test")
    other = description.model_copy(update={"inverted": settings})
    with InvertedBuilder(tmp_path / "index", description) as builder:
        builder.add(documents[:20], rows[:20])
    assert build(tmp_path / "index", other, documents, rows) == 0
    with pytest.raises(OutputError, match="it differs in inverted"):
        build(tmp_path / "index", description, documents, rows)


def test_empty_corpus_is_refused(tmp_path: Path, description: Description) -> None:
    with pytest.raises(InputError, match="has no documents"):
        build(tmp_path / "index", description, [], scipy.sparse.csr_matrix((0, SIZE)))
    assert not (tmp_path / "index").exists()
