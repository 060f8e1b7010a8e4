"""What a writer promises: all or nothing at any crash, one at a time, readers undisturbed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import described
from tests.index_bytes import verify

from isthmus.errors import InputError, OutputError
from isthmus.indexes.dense.builder import DenseBuilder, build_hnsw
from isthmus.indexes.dense.hnsw import HnswSettings
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.documents import DocumentWriter
from isthmus.indexes.manifest import SEGMENTS
from isthmus.indexes.segments import merge_policy as merging
from isthmus.indexes.segments import writer
from isthmus.indexes.segments.index import open_index
from isthmus.indexes.segments.writer import IndexWriter, Update
from isthmus.indexes.verification import read_manifest
from isthmus.records import Document, Ranking

QUERY = np.ones((1, 4), dtype=np.float32)
FORK = multiprocessing.get_context("fork")
KILLED = 9


@pytest.fixture(autouse=True)
def quick_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.config.output.environment", dict)


def new(*names: str) -> tuple[list[Document], np.ndarray]:
    generator = np.random.default_rng(sum(names[0].encode()))
    vectors = generator.standard_normal((len(names), 4)).astype(np.float32)
    return [Document(name, f"new {name}") for name in names], vectors


def contents(folder: Path) -> dict[str, str]:
    store = open_index(folder).store
    documents = [store.document(row) for row in range(len(store))]
    found = {document.id: document.text for document in documents}
    assert len(found) == len(documents), "a document is there twice"
    return found


def nearby(folder: Path) -> list[Ranking] | None:
    """The answer of the graph beside an index; None where it is refused."""
    try:
        return open_index(folder, hnsw=True).search(QUERY, 9, ["q"])
    except InputError:
        return None


def dies_at(step: int, steps: Any) -> None:
    """Counts every step that leaves a trace on the disk, and ends this process before one."""

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            steps.value += 1
            if steps.value == step:
                os._exit(KILLED)
            return function(*arguments, **options)

        return counted

    for owner, name in [
        (os, "fsync"), (Path, "replace"), (Path, "rename"), (Path, "mkdir"), (Path, "unlink"),
        (Path, "rmdir"), (Path, "hardlink_to"), (np, "save"), (DocumentWriter, "add"),
        (shutil, "rmtree"),
    ]:  # fmt: skip
        setattr(owner, name, watched(getattr(owner, name)))


def add_first(opened: IndexWriter) -> None:
    opened.add(*new("x"))
    opened.delete(["d0"])
    opened.commit()


def change(opened: IndexWriter) -> None:
    opened.add(*new("y", "d7"))
    opened.delete(["x", "d14"])
    opened.commit()


def merge(opened: IndexWriter) -> None:
    opened.merge()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([add_first], marks=pytest.mark.nightly),
        [add_first, change],
        [add_first, change, merge],
    ],
)
def test_crash_at_every_step(
    tmp_path: Path, dense_folder: Path, changes: list[Callable[[IndexWriter], None]]
) -> None:
    # So few documents that it finds all.
    build_hnsw(dense_folder, DenseIndex.open(dense_folder), HnswSettings())
    *earlier, last = changes
    with IndexWriter(dense_folder) as opened:
        for one in earlier:
            one(opened)
    before = contents(dense_folder)

    def work(folder: Path, step: int, steps: Any) -> None:
        opened = IndexWriter(folder)
        dies_at(step, steps)
        last(opened)

    def run(folder: Path, step: int) -> tuple[int, bool]:
        """The number of steps, and whether the change was acknowledged."""
        steps = FORK.Value("i", 0)
        child = FORK.Process(target=work, args=(folder, step, steps))
        child.start()
        child.join()
        assert child.exitcode in (0, KILLED)
        return steps.value, child.exitcode == 0

    whole = Path(shutil.copytree(dense_folder, tmp_path / "whole"))
    total, _ = run(whole, -1)
    wanted = contents(whole)
    assert total > 15
    assert (before != wanted) == (last is not merge)
    found = []
    for step in range(1, total + 1):
        folder = Path(shutil.copytree(dense_folder, tmp_path / str(step)))
        _, acknowledged = run(folder, step)
        verify(folder)
        found.append(contents(folder))
        assert found[-1] in (before, wanted)
        assert found[-1] == wanted or not acknowledged
        assert nearby(folder) in (None, open_index(folder).search(QUERY, 9, ["q"]))
        with IndexWriter(folder) as opened:  # goes on, and clears up
            opened.merge()
        assert contents(folder) == found[-1]
        assert not (folder / SEGMENTS).exists()
        assert not [entry for entry in folder.iterdir() if entry.name.startswith(".")]
        shutil.rmtree(folder)
    assert found[0] == before
    assert found[-1] == wanted


def test_nothing_counts_before_a_commit(dense_folder: Path) -> None:
    before = contents(dense_folder)
    with IndexWriter(dense_folder) as opened:
        opened.add(*new("x"))
        opened.delete(["d0"])
        assert contents(dense_folder) == before
    assert contents(dense_folder) == before
    assert not (dense_folder / SEGMENTS).exists()
    assert isinstance(open_index(dense_folder), DenseIndex)


def test_an_update_says_what_it_changed(dense_folder: Path) -> None:
    with IndexWriter(dense_folder) as opened:
        opened.add(*new("x", "d0", "y"))
        opened.delete(["d7", "y", "nobody"])
        assert opened.commit() == Update(added=1, replaced=1, deleted=1, documents=50)
        assert opened.commit() == Update(added=0, replaced=0, deleted=0, documents=50)
    assert contents(dense_folder)["d0"] == "new d0"


def test_ids_that_are_missing(dense_folder: Path) -> None:
    asked = ["nobody", "d0", "d7", "x", "y", "z"]
    with IndexWriter(dense_folder) as opened:
        assert opened.missing(asked) == ["nobody", "x", "y", "z"]
        opened.add(*new("x", "y"))
        opened.delete(["d0", "d7", "y"])
        opened.add(*new("d7"))
        assert opened.missing(asked) == ["nobody", "d0", "y", "z"]
        opened.commit()
        assert opened.missing(asked) == ["nobody", "d0", "y", "z"]


def test_of_equal_ids_in_one_call_the_last_counts(dense_folder: Path) -> None:
    documents = [Document("x", "one"), Document("y", "two"), Document("x", "three")]
    with IndexWriter(dense_folder) as opened:
        opened.add(documents, np.diag([1.0, 2.0, 3.0, 4.0])[:3].astype(np.float32))
        opened.commit()
    index = open_index(dense_folder)
    query = np.array([[0, 0, 100.0, 0]], dtype=np.float32)
    assert index.search(query, 1, ["q"], ["x"])[0].scores == (300.0,)
    assert contents(dense_folder)["x"] == "three"


def test_a_second_writer_is_refused(dense_folder: Path) -> None:
    def refused() -> None:
        with pytest.raises(OutputError, match="another process is writing into"):
            IndexWriter(dense_folder)

    with IndexWriter(dense_folder):
        refused()
        other = FORK.Process(target=refused)
        other.start()
        other.join()
        assert other.exitcode == 0
    IndexWriter(dense_folder).close()


def test_there_must_be_an_index(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no index"):
        IndexWriter(tmp_path / "nothing")


def test_bad_vectors_are_refused_and_the_rest_goes_on(dense_folder: Path) -> None:
    with IndexWriter(dense_folder) as opened:
        opened.add(*new("x"))
        with pytest.raises(InputError, match=r"'y' .* is not finite"):
            opened.add([Document("y", "")], np.full((1, 4), np.nan, dtype=np.float32))
        assert opened.commit().added == 1
    assert "x" in contents(dense_folder)


def test_a_reader_keeps_what_it_opened(dense_folder: Path) -> None:
    first = open_index(dense_folder)
    with IndexWriter(dense_folder) as opened:
        add_first(opened)
        second = open_index(dense_folder)
        expected = [index.search(QUERY, 60, ["q"]) for index in (first, second)]
        change(opened)
        opened.merge()
        opened.delete([f"d{number}" for number in range(50)])
        opened.commit()
    assert [index.search(QUERY, 60, ["q"]) for index in (first, second)] == expected
    assert first.store.row("d0") is not None
    assert second.store.row("d0") is None
    assert second.store.document(second.store.row("x")).text == "new x"
    assert len(open_index(dense_folder)) == 1


def test_everything_deleted_is_an_empty_index(dense_folder: Path) -> None:
    with IndexWriter(dense_folder) as opened:
        opened.delete(contents(dense_folder))
        assert opened.commit().documents == 0
        opened.merge()
    (found,) = open_index(dense_folder).search(QUERY, 10, ["q"])
    assert len(found) == 0
    with IndexWriter(dense_folder) as opened:
        opened.add(*new("x"))
        opened.commit()
    assert list(contents(dense_folder)) == ["x"]


def test_rankings_reach_below_many_deleted_documents(dense_folder: Path) -> None:
    everything = open_index(dense_folder).search(QUERY, 50, ["q"])[0]
    with IndexWriter(dense_folder) as opened:
        opened.delete(everything.document_ids[:20])
        opened.commit()
        (found,) = open_index(dense_folder).search(QUERY, 3, ["q"])
    assert found.document_ids == everything.document_ids[20:23]


def test_segments_of_another_index_are_refused(dense_folder: Path, tmp_path: Path) -> None:
    """A manifest in the place of another's: their segments have the same names."""
    other = described(titles=False)
    documents, vectors = new(*(f"d{number}" for number in range(50)))
    with DenseBuilder(tmp_path / "other", other) as builder:
        builder.add(documents, vectors)
        builder.finish({})
    for folder in (dense_folder, tmp_path / "other"):
        with IndexWriter(folder) as opened:
            opened.add(*new("x"))
            opened.commit()
    shutil.copy(tmp_path / "other" / "manifest.json", dense_folder)
    with pytest.raises(InputError, match=r"is damaged: its segment .* another index"):
        open_index(dense_folder)
    with pytest.raises(InputError, match="another index"):
        IndexWriter(dense_folder)


@pytest.fixture
def few_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "TOGETHER", 2)


@pytest.mark.usefixtures("few_together")
@pytest.mark.parametrize("moment", ["before it reads", "when it has read"])
def test_changes_during_a_merge_are_kept(
    dense_folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    plain = merging.merge

    def slowly(*arguments: Any) -> bool:
        done = moment == "when it has read" and plain(*arguments)
        reached.set()
        go_on.wait()
        return done or plain(*arguments)

    monkeypatch.setattr(writer, "merge", slowly)
    with IndexWriter(dense_folder) as opened:
        for names in (["x", "v"], ["y", "w"]):
            opened.add(*new(*names))
            opened.commit()
        reached.wait()
        # Of the documents that are being copied, one is replaced and two are deleted; nothing is
        # left of one of the segments.
        opened.add([Document("x", "newest")], QUERY)
        opened.delete(["y", "w"])
        opened.commit()
        opened.add(*new("z"))
        opened.commit()
        monkeypatch.setattr(writer, "merge", plain)
        go_on.set()
    found = contents(dense_folder)
    assert {name: found.get(name) for name in "vwxyz"} == {
        "v": "new v", "w": None, "x": "newest", "y": None, "z": "new z"
    }  # fmt: skip
    assert len(found) == 53
    segments = read_manifest(dense_folder).segments
    assert segments is not None
    assert len(segments) <= 3


def read(folder: Path, begun: Path, changed: Path, end: Path) -> None:
    """Opens and searches an index again and again, and says that it has seen a change."""
    seen: set[str] = set()
    while not end.exists():
        index = open_index(folder)
        texts = {index.store.document(index.store.row(i)).text for i in ("d0", "d7", "d14")}
        (ranking,) = index.search(QUERY, 60, ["q"])
        assert len(set(ranking.document_ids)) == len(ranking) == len(index) == 50
        assert len(texts) == 1, texts
        seen |= texts
        (changed if len(seen) > 1 else begun).touch()


@pytest.mark.usefixtures("few_together")
def test_readers_see_whole_commits_while_a_writer_works(dense_folder: Path, tmp_path: Path) -> None:
    """Every commit replaces the same three documents together: a reader sees all or none."""

    def replace_all(opened: IndexWriter, turn: int) -> None:
        documents = [Document(i, f"turn {turn}") for i in ("d0", "d7", "d14")]
        opened.add(documents, new("a", "b", "c")[1])
        opened.commit()

    with IndexWriter(dense_folder) as opened:
        replace_all(opened, 0)
        begun, changed = ([tmp_path / f"{name} {n}" for n in "12"] for name in ("begun", "changed"))
        readers = [
            FORK.Process(target=read, args=(dense_folder, *files, tmp_path / "end"))
            for files in zip(begun, changed, strict=True)
        ]
        for reader in readers:
            reader.start()
        while not all(file.exists() for file in begun):
            assert all(reader.is_alive() for reader in readers)
        turn = 0
        while turn < 20 or not all(file.exists() for file in changed):
            turn += 1
            replace_all(opened, turn)
            if turn % 7 == 0:
                opened.merge()
            if not all(reader.is_alive() for reader in readers):
                break
    (tmp_path / "end").touch()
    for reader in readers:
        reader.join()
        assert reader.exitcode == 0
