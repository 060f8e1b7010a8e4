"""Interrupted anywhere and run again, building gives the index of an uninterrupted run."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.crashes import contents, crash_at_every_step
from tests.factories import described, documents, vectors
from tests.index_bytes import verify

from isthmus.errors import InputError, OutputError
from isthmus.indexes import manifest
from isthmus.indexes.construction import already_built
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.documents import blocks
from isthmus.indexes.manifest import Description, workplace
from isthmus.records import Document

DESCRIPTION = described()
DOCUMENTS = documents()
VECTORS = vectors()


def build(
    folder: Path, description: Description, source: list[Document], vectors: np.ndarray
) -> int:
    """What the verb does; the number of documents that did not have to be done again."""
    if already_built(folder, description):
        return len(source)
    with DenseBuilder(folder, description) as builder:
        resumed = builder.rows
        for block in blocks(source[resumed:], 8):
            builder.add(block, vectors[builder.rows : builder.rows + len(block)])
        builder.finish({})
    return resumed


def test_crash_at_every_step(tmp_path: Path) -> None:
    total, resumed = crash_at_every_step(
        lambda folder: build(folder, DESCRIPTION, DOCUMENTS, VECTORS),
        tmp_path,
        [(Path, "open"), (np.lib.format, "write_array_header_1_0")],
    )
    assert total > 30
    assert resumed == {0, 8, 16, 24, 32, 40, 48, 50}


def test_what_a_crash_left_half_written_is_cut_off(tmp_path: Path) -> None:
    build(tmp_path / "whole", DESCRIPTION, DOCUMENTS, VECTORS)
    with DenseBuilder(tmp_path / "torn", DESCRIPTION) as builder:
        builder.add(DOCUMENTS[:8], VECTORS[:8])
    for name in ("vectors.npy", "documents.arrow"):
        with (workplace(tmp_path / "torn") / "index" / name).open("ab") as stream:
            stream.write(b"\x00garbage" * 1000)
    assert build(tmp_path / "torn", DESCRIPTION, DOCUMENTS, VECTORS) == 8
    assert contents(tmp_path / "torn") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", ["vectors.npy", "documents.arrow"])
def test_files_shorter_than_recorded_start_anew(tmp_path: Path, name: str) -> None:
    with DenseBuilder(tmp_path / "index", DESCRIPTION) as builder:
        builder.add(DOCUMENTS[:8], VECTORS[:8])
    file = workplace(tmp_path / "index") / "index" / name
    os.truncate(file, file.stat().st_size - 1)
    assert build(tmp_path / "index", DESCRIPTION, DOCUMENTS, VECTORS) == 0
    verify(tmp_path / "index")


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float16"},
        {"texts": False},
        {"titles": False},
        {"corpus": manifest.CorpusOrigin(spec="corpus.jsonl", fingerprint="other")},
        {"encoder": manifest.EncoderOrigin(name="model", fingerprint="other")},
    ],
)
def test_another_identity_is_never_mixed_in(tmp_path: Path, change: dict[str, object]) -> None:
    other = DESCRIPTION.model_copy(update=change)
    with DenseBuilder(tmp_path / "index", DESCRIPTION) as builder:
        builder.add(DOCUMENTS[:8], VECTORS[:8])
    assert build(tmp_path / "index", other, DOCUMENTS, VECTORS) == 0
    with pytest.raises(OutputError) as caught:
        build(tmp_path / "index", DESCRIPTION, DOCUMENTS, VECTORS)
    assert f"it differs in {next(iter(change))}" in caught.value.what


def test_moved_corpus_or_encoder_is_the_same_index(dense_folder: Path) -> None:
    moved = DESCRIPTION.model_copy(
        update={"corpus": manifest.CorpusOrigin(spec="elsewhere.jsonl", fingerprint="c0")}
    )
    assert already_built(dense_folder, moved)


def test_what_is_not_ours_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(OutputError, match="already holds something that is not an index"):
        already_built(tmp_path / "thesis", DESCRIPTION)
    with pytest.raises(OutputError, match="is a file"):
        already_built(tmp_path / "thesis" / "chapter.tex", DESCRIPTION)
    (tmp_path / "empty").mkdir()
    assert not already_built(tmp_path / "empty", DESCRIPTION)


def test_empty_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no documents"):
        build(tmp_path / "index", DESCRIPTION, [], np.empty((0, 4)))
    assert not (tmp_path / "index").exists()
