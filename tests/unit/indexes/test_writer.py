"""What a writer promises: all or nothing, one at a time, readers undisturbed, work gone on with."""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from tests.factories import BM25, DENSE, SPARSE, documents, fill, index_of, manifest, vectors
from tests.index_bytes import verify

from isthmus.errors import InputError, OutputError
from isthmus.indexes import writer
from isthmus.indexes.filters import parse
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import FieldAbout
from isthmus.indexes.writer import IndexWriter, Update
from isthmus.records import Document

FIELDS: dict[str, FieldAbout] = {"bm25": BM25, "dense": DENSE, "sparse": SPARSE}
DOCUMENTS, VECTORS = documents(), vectors()
QUERY = np.ones((1, 4), dtype=np.float32)
FORK = multiprocessing.get_context("fork")


def given(first: int, last: int, names: Mapping[str, Any] = FIELDS) -> dict[str, Any]:
    part = VECTORS[first:last]
    every = {"dense": part, "sparse": scipy.sparse.csr_matrix(abs(part))}
    return {name: every[name] for name in names if name in every}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return index_of(tmp_path / "index", DOCUMENTS, FIELDS, given(0, 50)).folder


def add(opened: IndexWriter, *names: str) -> None:
    some = [Document(name, f"new {name}") for name in names]
    opened.add(some, some, given(0, len(some)))


def contents(folder: Path) -> dict[str, str]:
    index = Index.open(folder)
    ids = list(index.ids())
    assert len(set(ids)) == len(ids) == len(index)
    return {one.id: one.text for one in index.documents(ids)}


def files(folder: Path) -> dict[str, bytes]:
    """All but what says when and by which command."""
    every = [file for file in folder.rglob("*") if file.is_file() and file.name != ".lock"]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in every}


def test_nothing_counts_before_a_commit(folder: Path) -> None:
    before = contents(folder)
    with IndexWriter(folder) as opened:
        add(opened, "x")
        opened.delete(["d0"])
        assert contents(folder) == before
    assert contents(folder) == before


def test_an_update_says_what_it_changed(folder: Path) -> None:
    with IndexWriter(folder) as opened:
        add(opened, "x", "d0", "y")
        opened.delete(["d7", "y", "nobody"])
        assert opened.commit() == Update(added=1, replaced=1, deleted=1, documents=50)
        assert opened.commit() == Update(added=0, replaced=0, deleted=0, documents=50)
        opened.add([], [], given(0, 0))
        assert opened.commit().documents == 50
    assert contents(folder)["d0"] == "new d0"


def test_a_changed_index_is_of_another_fingerprint(folder: Path) -> None:
    with IndexWriter(folder) as opened:
        opened.delete(["nobody"])
        opened.commit()
        assert opened.manifest.corpus.fingerprint == "c0"
        add(opened, "x")
        opened.commit()
        assert opened.manifest.corpus.fingerprint != "c0"


def test_a_second_writer_is_refused(folder: Path) -> None:
    def refused() -> None:
        with pytest.raises(OutputError, match="another process is writing into"):
            IndexWriter(folder)

    with IndexWriter(folder):
        refused()
        other = FORK.Process(target=refused)
        other.start()
        other.join()
        assert other.exitcode == 0
    IndexWriter(folder).close()


def test_there_must_be_an_index(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no index"):
        IndexWriter(tmp_path / "nothing")


@pytest.mark.parametrize("field", ["dense", "sparse"])
def test_what_cannot_be_stored_is_refused_and_leaves_no_trace(folder: Path, field: str) -> None:
    bad = given(0, 2)
    bad[field] = bad[field] * np.float32(np.nan)
    some = [Document("y", ""), Document("z", "")]
    with IndexWriter(folder) as opened:
        add(opened, "x")
        with pytest.raises(InputError, match="document 'y'"):
            opened.add(some, some, bad)
        add(opened, "y")
        assert opened.commit().added == 2
    verify(folder)
    assert contents(folder)["y"] == "new y"
    assert [r.id for batch in Index.open(folder).batches([field]) for r in batch.rows][50:] == [
        "x",
        "y",
    ]


def full(at: int) -> Callable[..., Any]:
    """The disk is full from some call on."""
    calls = 0

    def flush(stream: Any) -> int:
        nonlocal calls
        calls += 1
        if calls >= at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        stream.flush()
        return int(stream.tell())

    return flush


@pytest.mark.parametrize("at", [1, 2, 4, 8])
def test_a_full_disk_leaves_the_index_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    before = contents(folder)
    with IndexWriter(folder) as opened:
        stopped = full(at)
        with monkeypatch.context() as patch:
            for place in ("arrays", "documents", "sparse.builder", "columns"):
                patch.setattr(f"isthmus.indexes.{place}.flush", stopped)
            with pytest.raises(OutputError, match="no space left"):  # noqa: PT012
                add(opened, "w")
                add(opened, "x")
                opened.delete(["d0"])
                opened.commit()
        assert contents(folder) == before
        add(opened, "y")
        assert opened.commit() == Update(1, 0, 0, 51)
    verify(folder)
    assert contents(folder) == {**before, "y": "new y"}


def test_a_reader_keeps_what_it_opened(folder: Path) -> None:
    def answer(index: Index) -> Any:
        found = [index.search(n, q, 60, ["q"]) for n, q in (("dense", QUERY), ("bm25", ["new"]))]
        tagged = [mask.tolist() for mask in index.masks(parse({"tag": {"$exists": False}}))]
        return found, tagged, sorted(one.text for one in index.documents(list(index.ids())))

    first = Index.open(folder)
    before = answer(first)
    with IndexWriter(folder) as opened:
        add(opened, "x")
        opened.delete(["d0"])
        opened.commit()
        second = Index.open(folder)
        then = answer(second)
        opened.delete([f"d{number}" for number in range(50)])
        opened.commit()
        opened.merge(everything=True)
    with IndexWriter(folder, manifest({"bm25": BM25})) as opened:  # in place of it
        fill(opened, DOCUMENTS[:1])
        opened.commit()
    assert (answer(first), answer(second)) == (before, then)
    assert first.row("d0") is not None
    assert second.row("d0") is None
    assert list(contents(folder)) == [DOCUMENTS[0].id]
    assert {name.split("/")[1] for name in files(folder) if "/" in name} == {
        about.name for about in opened.manifest.segments
    }, "no old file is left"


def test_everything_deleted_is_an_empty_index(folder: Path) -> None:
    with IndexWriter(folder) as opened:
        opened.delete(contents(folder))
        assert opened.commit().documents == 0
        opened.merge(everything=True)
    index = Index.open(folder)
    for name, query in given(0, 1).items():
        assert len(index.search(name, query, 10, ["q"])[0]) == 0
    assert len(index.search("bm25", ["river"], 10, ["q"])[0]) == 0
    with IndexWriter(folder) as opened:
        add(opened, "x")
        opened.commit()
    assert list(contents(folder)) == ["x"]


def read(folder: Path, begun: Path, changed: Path, end: Path) -> None:
    """Opens and searches an index again and again, and says that it has seen a change."""
    seen: set[str] = set()
    while not end.exists():
        index = Index.open(folder)
        texts = {one.text for one in index.documents(["d0", "d7", "d14"])}
        (ranking,) = index.search("dense", QUERY, 60, ["q"])
        assert len(set(ranking.document_ids)) == len(ranking) == len(index) == 50
        assert len(texts) == 1, texts
        seen |= texts
        (changed if len(seen) > 1 else begun).touch()


def test_readers_see_whole_commits_while_a_writer_works(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every commit replaces the same three documents together: a reader sees all or none."""
    monkeypatch.setattr(writer, "TOGETHER", 2)

    def replace_all(opened: IndexWriter, turn: int) -> None:
        some = [Document(i, f"turn {turn}") for i in ("d0", "d7", "d14")]
        opened.add(some, some, given(0, 3))
        opened.commit()

    with IndexWriter(folder) as opened:
        replace_all(opened, 0)
        begun, changed, end = tmp_path / "begun", tmp_path / "changed", tmp_path / "end"
        reader = FORK.Process(target=read, args=(folder, begun, changed, end))
        reader.start()
        turn = 0
        while reader.is_alive() and (turn < 12 or not changed.exists()):
            if begun.exists():
                turn += 1
                replace_all(opened, turn)
                opened.merge(everything=turn % 5 == 0)
        end.touch()
    reader.join()
    assert reader.exitcode == 0


# Building, and what goes on where it was interrupted.


class Interrupted(Exception):
    """As a process that is killed, it cannot be answered."""


def build(folder: Path, stop: int = 10**9, job: str = "job", **changes: Any) -> int:
    """Fills an index in blocks of 8, or stops after some; how many documents were there before."""
    wanted = manifest({**FIELDS, **changes})
    with IndexWriter(folder, wanted, job) as opened:
        done = opened.done
        for first in range(done, 50, 8):
            if first >= stop:
                raise Interrupted
            some = DOCUMENTS[first : first + 8]
            opened.add(some, some, given(first, first + 8))
        opened.commit()
    return done


@pytest.mark.parametrize("stop", [8, 24, 50])
def test_interrupted_after_any_block_building_goes_on(
    tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(Interrupted):  # noqa: PT012
        if stop == 50:  # all but the commit

            def publish(*_: object) -> None:
                raise Interrupted

            patch.setattr(writer, "write_manifest", publish)
        build(tmp_path / "index", stop)
    with pytest.raises(InputError, match="is not complete"):
        Index.open(tmp_path / "index")
    for part in ("dense/vectors.npy", "documents/documents.arrow", "sparse/terms.gathered"):
        if stop == 24:  # what was not recorded is cut off
            with (tmp_path / "index" / "segments" / "000001" / part).open("ab") as stream:
                stream.write(b"\0garbage" * 1000)
    assert build(tmp_path / "index") == stop
    assert files(tmp_path / "index") == files(tmp_path / "whole")
    verify(tmp_path / "index")


@pytest.mark.parametrize("part", ["dense/vectors.npy", "sparse/weights.gathered", "progress.json"])
@pytest.mark.parametrize("lost", [True, False])
def test_files_shorter_than_recorded_start_anew(tmp_path: Path, part: str, lost: bool) -> None:
    with pytest.raises(Interrupted):
        build(tmp_path / "index", 16)
    file = tmp_path / "index" / "segments" / "000001" / part
    file.unlink() if lost else os.truncate(file, file.stat().st_size - 2)
    assert build(tmp_path / "index") == 0
    verify(tmp_path / "index")


def test_another_job_is_never_mixed_in(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        build(tmp_path / "index", 16)
    assert build(tmp_path / "index", job="other") == 0
    build(tmp_path / "whole", job="other")
    one, two = (
        {name.split("/", 2)[2]: held for name, held in files(tmp_path / n).items() if "/" in name}
        for n in ("index", "whole")
    )
    assert one == two


def test_adding_goes_on_and_replaces(folder: Path, tmp_path: Path) -> None:
    def work(where: Path, stop: int) -> Update:
        with IndexWriter(where, job="job") as opened:
            names = ["x", "d0", "y", "z"]
            for number, name in enumerate(names[opened.done :], opened.done):
                if number == stop:
                    raise Interrupted
                add(opened, name)
            return opened.commit()

    with pytest.raises(Interrupted):
        work(folder, 2)
    assert len(contents(folder)) == 50
    assert work(folder, 9) == Update(3, 1, 0, 53)
    assert contents(folder)["d0"] == "new d0"
    verify(folder)


@pytest.mark.parametrize("anew", [False, True])
def test_what_was_committed_is_not_gone_on_with(
    folder: Path, anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = manifest(FIELDS) if anew else None
    with monkeypatch.context() as patch:  # as if killed right after the commit
        patch.setattr(writer, "_remove", lambda place: None)
        with IndexWriter(folder, begin, job="job") as opened:
            add(opened, "x")
            opened.commit()
    before = contents(folder)
    with IndexWriter(folder, begin, job="job") as opened:
        assert opened.done == 0
        assert contents(folder) == before
    verify(folder)


@pytest.mark.parametrize("moment", ["first segment", "second segment", "bm25"])
def test_a_new_field_goes_on_where_it_was_interrupted(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = index_of(tmp_path / "index", DOCUMENTS[:30], {"first": DENSE}, {"first": VECTORS[:30]})
    with IndexWriter(folder.folder) as opened:
        opened.add(DOCUMENTS[30:], DOCUMENTS[30:], {"first": VECTORS[30:]})
        opened.delete([DOCUMENTS[3].id])
        opened.commit()
    places = {one.id: row for row, one in enumerate(DOCUMENTS)}
    encoded: list[str] = []
    stop = {"first segment": 0, "second segment": 30, "bm25": 99}[moment]

    def encode(blocks: Iterator[list[Document]]) -> Iterator[Any]:
        for block in blocks:
            if len(encoded) >= stop:
                raise Interrupted
            encoded.extend(one.id for one in block)
            rows = [places[one.id] for one in block]
            yield block, {"sparse": scipy.sparse.csr_matrix(abs(VECTORS[rows]))}

    def grow() -> None:
        with IndexWriter(folder.folder, job="job") as opened:
            opened.add_fields({"bm25": BM25, "sparse": SPARSE}, encode)

    def interrupted(*_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch, pytest.raises(Interrupted):  # noqa: PT012
        if moment == "bm25":
            patch.setattr("isthmus.indexes.bm25.builder.merge_postings", interrupted)
        grow()
    assert list(Index.open(folder.folder).manifest.fields) == ["first"]
    stop = 99
    grow()
    assert sorted(encoded) == sorted(one.id for one in DOCUMENTS), "each once"
    verify(folder.folder)
    living = [one for one in DOCUMENTS if one.id != DOCUMENTS[3].id]
    rows = [places[one.id] for one in living]
    anew = index_of(
        tmp_path / "anew", living, {"bm25": BM25, "sparse": SPARSE},
        {"sparse": scipy.sparse.csr_matrix(abs(VECTORS[rows]))},
    )  # fmt: skip
    grown = Index.open(folder.folder)
    for name, query in (("bm25", ["river bank"]), ("sparse", given(0, 1)["sparse"])):
        assert grown.search(name, query, 9, ["q"]) == anew.search(name, query, 9, ["q"])


def test_words_alone_go_on_where_a_new_field_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of postings whose files a later writer removed are not taken for work that is done."""
    folder = index_of(tmp_path / "index", DOCUMENTS, {"dense": DENSE}, {"dense": VECTORS}).folder

    def interrupted(*_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr("isthmus.indexes.bm25.builder.merge_postings", interrupted)
        with pytest.raises(Interrupted), IndexWriter(folder, job="job") as opened:
            opened.add_fields({"bm25": BM25})
    with IndexWriter(folder, job="job") as opened:
        opened.add_fields({"bm25": BM25})
    anew = index_of(tmp_path / "anew", DOCUMENTS, {"bm25": BM25})
    both = [one.search("bm25", ["river"], 50, ["q"]) for one in (Index.open(folder), anew)]
    assert both[0] == both[1]


def test_a_writer_whose_lock_was_removed_by_hand_commits_nothing(folder: Path) -> None:
    with IndexWriter(folder) as first:
        first.delete(["d0"])
        (folder / ".lock").unlink()
        with IndexWriter(folder) as second:
            add(second, "y")
            second.commit()
        with pytest.raises(OutputError, match="while it was being written"):
            first.commit()
    assert {"y", "d0"} <= contents(folder).keys()
