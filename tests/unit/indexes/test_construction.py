"""Interrupted anywhere and run again, building gives the index of an uninterrupted run."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from tests.index_bytes import verify

from isthmus.errors import InputError, OutputError
from isthmus.indexes import construction as building
from isthmus.indexes import documents, manifest
from isthmus.indexes.construction import already_built, builder_for
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.documents import blocks
from isthmus.indexes.manifest import Description, workplace
from isthmus.records import Document


class Crash(BaseException):
    """Stands for the end of the process: nothing catches it, nothing cleans up after it."""


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


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def instrument(monkeypatch: pytest.MonkeyPatch, fail_at: int, after: bool) -> Callable[[], int]:
    """Counts every step that leaves a trace on the disk and ends the process at one of them."""
    steps = 0

    def watched(function: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **options: object) -> object:
            nonlocal steps
            steps += 1
            mine = steps  # a step may contain others
            if mine == fail_at and not after:
                raise Crash
            try:
                return function(*arguments, **options)
            finally:
                if mine == fail_at and after:
                    raise Crash

        return step

    monkeypatch.setattr(os, "fsync", watched(os.fsync))
    monkeypatch.setattr(Path, "replace", watched(Path.replace))
    monkeypatch.setattr(Path, "rename", watched(Path.rename))
    monkeypatch.setattr(Path, "mkdir", watched(Path.mkdir))
    monkeypatch.setattr(Path, "open", watched(Path.open))
    monkeypatch.setattr(np, "save", watched(np.save))
    monkeypatch.setattr(building.shutil, "rmtree", watched(building.shutil.rmtree))
    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", watched(np.lib.format.write_array_header_1_0))  # fmt: skip  # noqa: E501
    monkeypatch.setattr(documents.DocumentWriter, "add", watched(documents.DocumentWriter.add))
    monkeypatch.setattr(building, "write_manifest", watched(manifest.write_manifest))
    return lambda: steps


@pytest.mark.slow
def test_crash_at_every_step(
    tmp_path: Path,
    dense_description: Description,
    documents: list[Document],
    vectors: np.ndarray,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        count = instrument(patch, fail_at=-1, after=False)
        build(tmp_path / "whole", dense_description, documents, vectors)
        total = count()
    expected = contents(tmp_path / "whole")
    assert total > 30
    resumed = set()
    for step in range(1, total + 1):
        for after in (False, True):
            folder = tmp_path / f"{step}{after}"
            with pytest.MonkeyPatch.context() as patch:
                instrument(patch, step, after)
                with pytest.raises(Crash):
                    build(folder, dense_description, documents, vectors)
            resumed.add(build(folder, dense_description, documents, vectors))
            assert contents(folder) == expected, f"step {step}, {after=}"
            assert not workplace(folder).exists()
    assert resumed == {0, 8, 16, 24, 32, 40, 48, 50}


def test_what_a_crash_left_half_written_is_cut_off(
    tmp_path: Path,
    dense_description: Description,
    documents: list[Document],
    vectors: np.ndarray,
) -> None:
    build(tmp_path / "whole", dense_description, documents, vectors)
    with DenseBuilder(tmp_path / "torn", dense_description) as builder:
        builder.add(documents[:8], vectors[:8])
    for name in ("vectors.npy", "documents.arrow"):
        with (workplace(tmp_path / "torn") / "index" / name).open("ab") as stream:
            stream.write(b"\x00garbage" * 1000)
    assert build(tmp_path / "torn", dense_description, documents, vectors) == 8
    assert contents(tmp_path / "torn") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", ["vectors.npy", "documents.arrow"])
def test_files_shorter_than_recorded_start_anew(
    tmp_path: Path,
    dense_description: Description,
    documents: list[Document],
    vectors: np.ndarray,
    name: str,
) -> None:
    with DenseBuilder(tmp_path / "index", dense_description) as builder:
        builder.add(documents[:8], vectors[:8])
    os.truncate(workplace(tmp_path / "index") / "index" / name, 100)
    assert build(tmp_path / "index", dense_description, documents, vectors) == 0
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
def test_another_identity_is_never_mixed_in(
    tmp_path: Path,
    dense_description: Description,
    documents: list[Document],
    vectors: np.ndarray,
    change: dict[str, object],
) -> None:
    other = dense_description.model_copy(update=change)
    with DenseBuilder(tmp_path / "index", dense_description) as builder:
        builder.add(documents[:8], vectors[:8])
    assert build(tmp_path / "index", other, documents, vectors) == 0
    with pytest.raises(OutputError) as caught:
        build(tmp_path / "index", dense_description, documents, vectors)
    assert f"it differs in {next(iter(change))}" in caught.value.what


def test_moved_corpus_or_encoder_is_the_same_index(
    dense_folder: Path, dense_description: Description
) -> None:
    moved = dense_description.model_copy(
        update={"corpus": manifest.CorpusOrigin(spec="elsewhere.jsonl", fingerprint="c0")}
    )
    assert already_built(dense_folder, moved)


def test_what_is_not_ours_is_not_touched(tmp_path: Path, dense_description: Description) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(OutputError, match="already holds something that is not an index"):
        already_built(tmp_path / "thesis", dense_description)
    with pytest.raises(OutputError, match="is a file"):
        already_built(tmp_path / "thesis" / "chapter.tex", dense_description)
    (tmp_path / "empty").mkdir()
    assert not already_built(tmp_path / "empty", dense_description)


def test_full_disk_is_explained_and_resumed(
    tmp_path: Path,
    dense_description: Description,
    documents: list[Document],
    vectors: np.ndarray,
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with DenseBuilder(tmp_path / "index", dense_description) as builder:
        builder.add(documents[:8], vectors[:8])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OutputError, match="no space left") as caught:
                builder.add(documents[8:16], vectors[8:16])
    assert caught.value.remedy.endswith("and run again")
    assert build(tmp_path / "index", dense_description, documents, vectors) == 8


def test_empty_corpus_is_refused(tmp_path: Path, dense_description: Description) -> None:
    with pytest.raises(InputError, match="the corpus has no documents"):
        build(tmp_path / "index", dense_description, [], np.empty((0, 4)))
    assert not (tmp_path / "index").exists()


CHILD = """
import sys
from pathlib import Path
import numpy as np
import pyarrow
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.construction import already_built, builder_for
from isthmus.indexes.documents import blocks
from isthmus.indexes.manifest import CorpusOrigin, Description, EncoderOrigin
from isthmus.records import Document

description = Description(
    kind="dense", corpus=CorpusOrigin(spec="c", fingerprint="c"), titles=True,
    encoder=EncoderOrigin(name="e", fingerprint="e"), dimension=64, dtype="float32",
)
vectors = np.random.default_rng(0).standard_normal((6000, 64)).astype(np.float32)
source = [Document(str(row), "text " * (row % 100)) for row in range(6000)]
folder = Path(sys.argv[1])
pyarrow.array([""])  # imports what it needs, so that the time that follows is spent on building
print("ready", flush=True)
if not already_built(folder, description):
    with DenseBuilder(folder, description) as builder:
        print(builder.rows, flush=True)
        for block in blocks(source[builder.rows:], 10):
            builder.add(block, vectors[builder.rows : builder.rows + len(block)])
        builder.finish({})
"""


def _child(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(folder)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.slow
def test_killed_at_random_times(tmp_path: Path) -> None:
    child = _child(tmp_path / "whole")
    start = time.monotonic()
    assert child.wait() == 0
    duration = time.monotonic() - start
    expected = contents(tmp_path / "whole")
    moments = random.Random(0)
    resumed = [0]
    for _ in range(6):
        child = _child(tmp_path / "killed")
        time.sleep(moments.uniform(0, duration / 4))
        child.send_signal(signal.SIGKILL)
        resumed += [int(rows) for rows in child.communicate()[0].split()]
    assert max(resumed) > 0
    assert _child(tmp_path / "killed").wait() == 0
    found = contents(tmp_path / "killed")
    for snapshot in (expected, found):  # holds the command line, and so the folder's name
        snapshot.pop("isthmus.json")
    assert found == expected


@pytest.mark.parametrize("kind", ["dense", "inverted", "bm25"])
def test_a_file_that_may_not_grow_is_an_error_of_ours(
    kind: str, tmp_path: Path, dense_description: Description
) -> None:
    """What is still in memory is not written again, and fails again, when the file is closed."""
    chosen = dense_description.model_dump() | {"kind": kind}
    if kind != "dense":
        chosen |= {"dtype": None, kind: {}}
    if kind == "bm25":
        chosen |= {"encoder": None, "dimension": None}
    source = [Document(f"d{number}", f"word{number}") for number in range(50)]
    vectors = np.ones((50, 4), dtype=np.float32)
    rows = {"dense": vectors, "inverted": scipy.sparse.csr_matrix(vectors), "bm25": None}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        with builder_for(tmp_path / kind, Description.parse(chosen, "test")) as builder:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
            builder.add(source, rows[kind])
            builder.finish({})

    try:
        with pytest.raises(OutputError):
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
