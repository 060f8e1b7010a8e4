"""Interrupted anywhere and run again, building gives the index of an uninterrupted run."""

from __future__ import annotations

import errno
import os
import random
import shutil
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
from isthmus.indexes.construction import already_built
from isthmus.indexes.documents import DocumentWriter, blocks
from isthmus.indexes.inverted import builder as inverting
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


class Crash(BaseException):
    """Stands for the end of the process: nothing catches it, nothing cleans up after it."""


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
    monkeypatch.setattr(np, "save", watched(np.save))
    monkeypatch.setattr(building.shutil, "rmtree", watched(building.shutil.rmtree))
    monkeypatch.setattr(DocumentWriter, "add", watched(DocumentWriter.add))
    monkeypatch.setattr(inverting.GrowingArray, "append", watched(inverting.GrowingArray.append))
    monkeypatch.setattr(building, "write_manifest", watched(building.write_manifest))
    return lambda: steps


@pytest.mark.slow
def test_crash_at_every_step(
    tmp_path: Path,
    description: Description,
    documents: list[Document],
    rows: scipy.sparse.csr_matrix,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        count = instrument(patch, fail_at=-1, after=False)
        build(tmp_path / "whole", description, documents, rows)
        total = count()
    expected = contents(tmp_path / "whole")
    assert total > 40
    resumed = set()
    for step in range(1, total + 1):
        for after in (False, True):
            folder = tmp_path / f"{step}{after}"
            with pytest.MonkeyPatch.context() as patch:
                instrument(patch, step, after)
                with pytest.raises(Crash):
                    build(folder, description, documents, rows)
            resumed.add(build(folder, description, documents, rows))
            assert contents(folder) == expected, f"step {step}, {after=}"
            assert not workplace(folder).exists()
    assert resumed == {0, 20, 40, 50}


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


def test_full_disk_is_explained_and_resumed(
    tmp_path: Path,
    description: Description,
    documents: list[Document],
    rows: scipy.sparse.csr_matrix,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with InvertedBuilder(tmp_path / "index", description) as builder:
        builder.add(documents[:20], rows[:20])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OutputError, match="no space left") as caught:
                builder.add(documents[20:40], rows[20:40])
    assert caught.value.remedy.endswith("and run again")
    with InvertedBuilder(tmp_path / "index", description) as builder:
        builder.add(documents[20:], rows[20:])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inverting.GrowingArray, "append", full)
            with pytest.raises(OutputError, match="no space left"):
                builder.finish({})
    assert build(tmp_path / "index", description, documents, rows) == 50


def test_empty_corpus_is_refused(tmp_path: Path, description: Description) -> None:
    with pytest.raises(InputError, match="the corpus has no documents"):
        build(tmp_path / "index", description, [], scipy.sparse.csr_matrix((0, SIZE)))
    assert not (tmp_path / "index").exists()


CHILD = """
import sys
from pathlib import Path
import numpy as np
import scipy.sparse
from isthmus.indexes.construction import already_built
from isthmus.indexes.documents import blocks
from isthmus.indexes.inverted.builder import InvertedBuilder
from isthmus.indexes.manifest import CorpusOrigin, Description, EncoderOrigin, InvertedSettings
from isthmus.records import Document

description = Description(
    kind="inverted", corpus=CorpusOrigin(spec="c", fingerprint="c"), titles=True,
    encoder=EncoderOrigin(name="e", fingerprint="e"), dimension=300, inverted=InvertedSettings(),
)
generator = np.random.default_rng(0)
rows = scipy.sparse.random(3000, 300, 0.1, format="csr", random_state=generator)
source = [Document(str(row), "text " * (row % 100)) for row in range(3000)]
folder = Path(sys.argv[1])
print("ready", flush=True)
if not already_built(folder, description):
    with InvertedBuilder(folder, description, block=256) as builder:
        print(builder.rows, flush=True)
        for block in blocks(source[builder.rows:], 10):
            builder.add(block, rows[builder.rows : builder.rows + len(block)])
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
    _child(tmp_path / "first").wait()  # compiles what is not compiled yet
    child = _child(tmp_path / "whole")
    start = time.monotonic()
    assert child.wait() == 0
    duration = time.monotonic() - start
    expected = contents(tmp_path / "whole")
    moments = random.Random(0)
    resumed = [0]
    kills = 0
    while kills < 3 or not max(resumed):  # on a slow machine, many are killed before they begin
        child = _child(tmp_path / "killed")
        time.sleep(moments.uniform(0, duration))
        child.send_signal(signal.SIGKILL)
        rows = [int(row) for row in child.communicate()[0].split()]
        if child.returncode == 0:  # it was faster
            shutil.rmtree(tmp_path / "killed")
        else:
            kills += 1
            resumed += rows
    assert _child(tmp_path / "killed").wait() == 0
    found = contents(tmp_path / "killed")
    for snapshot in (expected, found):  # holds the command line, and so the folder's name
        snapshot.pop("isthmus.json")
    assert found == expected
