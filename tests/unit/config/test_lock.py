"""One writer at a time: locks under contention, links that are followed, folders that exchange."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.config import output
from isthmus.config.output import (
    claimed,
    exchange,
    finish,
    only_writer,
    publish,
    reserved,
    whole_file,
    whole_folder,
    write_json,
)
from isthmus.errors import OutputError

FORK = multiprocessing.get_context("fork")
BUSY = "another process is writing into"


def forked(target: Callable[..., None], count: int, *arguments: Any) -> None:
    """Runs a function in processes of its own, all at once; each must end well."""
    processes = [FORK.Process(target=target, args=(*arguments, n)) for n in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * count


def test_a_failed_job_lets_others_in_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "one"
    with pytest.raises(ValueError, match="bad"), only_writer(folder):
        raise ValueError("bad")
    assert not (tmp_path / "runs").exists()
    folder.mkdir(parents=True)
    with only_writer(folder):
        pass
    assert folder.is_dir(), "a folder that was there stays"


def test_the_child_of_a_writer_does_not_let_others_in(tmp_path: Path) -> None:
    with only_writer(tmp_path / "x") as lock:
        forked(lambda _: lock.release(), 1)
        with pytest.raises(OutputError, match=BUSY):
            only_writer(tmp_path / "x")


def test_what_was_removed_meanwhile_is_not_published(tmp_path: Path) -> None:
    folder, partial = tmp_path / "run", tmp_path / ".partial"
    partial.mkdir()
    with claimed(folder, "tune", {}):
        shutil.rmtree(folder)
        with claimed(folder, "tune", {"other": 1}):
            for end in (lambda: finish(folder), lambda: publish(partial, folder / "final")):
                with pytest.raises(OutputError, match="removed or replaced while it was being"):
                    end()
    assert output.read_snapshot(folder)["identity"] == {"other": 1}


def test_where_nothing_can_be_written_nothing_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claimed(tmp_path / "run", "tune", {}):
        finish(tmp_path / "run")
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(output, "Lock", None)
    with claimed(tmp_path / "run", "tune", {}) as known, reserved(tmp_path / "index"):
        assert known


def test_links_are_followed_and_stay(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    for name in ("run", "made", "file.json", "held"):
        (tmp_path / name).symlink_to(tmp_path / "disk" / name)
    with claimed(tmp_path / "run", "tune", {}):
        finish(tmp_path / "run")
    for content in ("old", "new"):
        with whole_folder(tmp_path / "made") as partial:
            (partial / content).touch()
    write_json(tmp_path / "file.json", 1)
    write_json(tmp_path / "file.json", 2)
    with reserved(tmp_path / "held"), pytest.raises(OutputError, match=BUSY):
        output.Lock(tmp_path, tmp_path / "disk" / ".held.writer.lock")
    assert all(found.is_symlink() for found in tmp_path.iterdir() if found.name != "disk")
    assert [found.name for found in (tmp_path / "disk" / "made").iterdir()] == ["new"]
    assert (tmp_path / "disk" / "file.json").read_text() == "2\n"
    assert sorted(os.listdir(tmp_path / "disk")) == ["file.json", "made", "run"]


def _replace(folder: Path, ended: Any, _: int) -> None:
    for number in range(500):
        with whole_folder(folder) as partial:
            (partial / "number").write_text(str(number))
    ended.set()


def test_a_folder_that_is_replaced_is_never_absent(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder).mkdir()
    if not _can_exchange(tmp_path):
        pytest.skip("this file system cannot exchange names")
    (folder / "number").write_text("0")
    ended = FORK.Event()
    writer = FORK.Process(target=_replace, args=(folder, ended, 0))
    writer.start()
    reads, last = 0, -1
    while not ended.is_set():
        # Opened once: what is read is of one folder, even while it is being removed.
        opened = os.open(folder, os.O_RDONLY)
        try:
            stream = os.open("number", os.O_RDONLY, dir_fd=opened)
        except FileNotFoundError:  # the old one, which is being removed
            stream = -1
        finally:
            os.close(opened)
        if stream >= 0:
            found = int(os.read(stream, 9))
            os.close(stream)
            assert found >= last
            last = found
        reads += 1
    writer.join()
    assert writer.exitcode == 0
    assert reads > 100
    assert (folder / "number").read_text() == "499"
    assert [found.name for found in tmp_path.iterdir()] == ["folder"]


def _can_exchange(place: Path) -> bool:
    one, two = place / "one", place / "two"
    for path in (one, two):
        path.mkdir()
        (path / path.name).touch()
    done = exchange(one, two)
    assert [found.name for found in one.iterdir()] == ["two" if done else "one"]
    shutil.rmtree(one)
    shutil.rmtree(two)
    return done


def test_what_may_not_be_replaced(tmp_path: Path) -> None:
    made, folder = tmp_path / "made", tmp_path / "x"
    made.mkdir()
    (made / "new").touch()
    folder.mkdir()
    (folder / "thesis.tex").touch()
    with pytest.raises(OutputError, match="was filled by something else"):
        publish(made, folder, replace=False)
    assert [found.name for found in folder.iterdir()] == ["thesis.tex"]
    (folder / "thesis.tex").unlink()
    publish(made, folder, replace=False)
    assert [found.name for found in folder.iterdir()] == ["new"]


def test_a_file_that_fails_leaves_the_old_one_alone(tmp_path: Path) -> None:
    file = tmp_path / "run.trec"
    file.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(file) as stream:
        stream.write(f"new {1 / 0}")
    assert file.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["run.trec"]


def test_a_device_is_written_as_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with reserved(tmp_path / "pipe"), whole_file(tmp_path / "pipe") as stream:
        stream.write("through")
    assert os.read(reader, 99) == b"through"
    os.close(reader)
    assert [found.name for found in tmp_path.iterdir()] == ["pipe"]
