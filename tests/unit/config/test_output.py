"""Output folders: claimed, published whole, never another's; the system's refusals explained."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from isthmus.config.output import (
    SNAPSHOT,
    claimed,
    finish,
    is_complete,
    only_writer,
    read_snapshot,
    refuse_inside,
    replace_run,
    whole_folder,
    write_json,
)
from isthmus.errors import InputError, OutputError

IDENTITY: dict[str, Any] = {
    "settings": {"training": {"seed": 1, "report_to": ["a"]}, "titles": True},
    "data": {"corpus": "f00"},
}


def claim(folder: Path, verb: str, identity: dict[str, Any]) -> bool:
    """Whether the folder held this very job; it is claimed for a moment only."""
    with claimed(folder, verb, identity) as known:
        return known


def test_claim_resume_finish(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "deep" / "one"
    assert claim(folder, "pretrain", IDENTITY) is False
    assert not is_complete(folder)
    assert claim(folder, "pretrain", IDENTITY) is True
    finish(folder, {"loss": 1.5})
    assert is_complete(folder)
    assert claim(folder, "pretrain", IDENTITY) is True
    snapshot = read_snapshot(folder)
    assert snapshot["verb"] == "pretrain"
    assert snapshot["identity"] == IDENTITY
    assert snapshot["results"] == {"loss": 1.5}
    assert {"isthmus", "python", "torch", "numpy"} <= set(snapshot["versions"])
    assert {"commit", "machine", "command"} <= set(snapshot)


def test_a_second_writer_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "deep" / "one"
    waiting = (
        "import sys; from pathlib import Path; from isthmus.config.output import claimed\n"
        f"with claimed(Path({str(folder)!r}), 'pretrain', {IDENTITY!r}):\n"
        "    print('claimed', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(OutputError, match="another process is writing"):
            claim(folder, "pretrain", IDENTITY)
        other.kill()
    assert claim(folder, "pretrain", IDENTITY) is True, "nothing is left of a killed writer"
    assert sorted(found.name for found in folder.iterdir()) == [SNAPSHOT]


def test_the_other_processes_of_a_launch_are_no_second_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runs" / "deep" / "one"
    with only_writer(folder):
        monkeypatch.setenv("RANK", "1")
        assert claim(folder, "pretrain", IDENTITY) is False


def test_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "deep" / "one"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError) as caught:
        claim(folder, "pretrain", IDENTITY)
    assert f"--output {str(folder)!r} already holds something" in caught.value.what
    assert [file.name for file in folder.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("verb", "change", "reason"),
    [
        ("pretrain", {"data": {"corpus": "f01"}}, "it differs in data.corpus"),
        ("pretrain", {"settings": {"training": {"seed": 2, "report_to": ["a"]}, "titles": True}},
         "it differs in settings.training.seed"),
        ("pretrain", {"data": {}}, "it differs in data.corpus"),
        ("finetune", {}, "it was made by `isthmus pretrain`"),
    ],
)  # fmt: skip
def test_another_jobs_folder(
    verb: str, change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "deep" / "one"
    claim(folder, "pretrain", IDENTITY)
    (folder / "checkpoint-1").mkdir()
    before = (folder / SNAPSHOT).read_bytes()
    with pytest.raises(OutputError) as caught:
        claim(folder, verb, {**IDENTITY, **change})
    assert f"{str(folder)!r} already holds another job: {reason}" in caught.value.what
    assert "another --output" in caught.value.fix
    assert (folder / SNAPSHOT).read_bytes() == before


def test_overwrite_replaces_another_job_or_a_finished_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    other = {**IDENTITY, "data": {"corpus": "f01"}}
    old = folder / "checkpoint-1" / "weights"

    def replaced(identity: dict[str, Any], verb: str = "pretrain") -> bool:
        old.parent.mkdir(parents=True, exist_ok=True)
        old.write_text("old")
        with claimed(folder, verb, identity, overwrite=True) as known:
            assert known == old.is_file()
        return not known

    claim(folder, "pretrain", IDENTITY)
    assert not replaced(IDENTITY), "unfinished, it resumes"
    finish(folder)
    assert replaced(IDENTITY)
    assert not is_complete(folder)
    assert replaced(other)
    assert replaced(other, "finetune")
    assert sorted(found.name for found in folder.iterdir()) == [SNAPSHOT]
    finish(folder)
    with (
        pytest.raises(OutputError, match="already holds another job") as caught,
        claimed(folder, "finetune", IDENTITY, overwrite=False),
    ):
        pass
    assert "--overwrite" in caught.value.fix


def test_overwrite_leaves_what_isthmus_did_not_write(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with (
        pytest.raises(OutputError, match="isthmus did not write"),
        claimed(tmp_path, "pretrain", IDENTITY, overwrite=True),
    ):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_half_replaced_it_is_of_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(tmp_path, "pretrain", IDENTITY)
    (tmp_path / "checkpoint-1").mkdir()
    with monkeypatch.context() as killed:
        killed.setattr(shutil, "rmtree", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            replace_run(tmp_path, "pretrain")
    with pytest.raises(OutputError, match="already holds another job"):
        claim(tmp_path, "pretrain", IDENTITY)
    with claimed(tmp_path, "pretrain", IDENTITY, overwrite=True) as known:
        assert not known
    assert not (tmp_path / "checkpoint-1").exists()


def test_what_is_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "run" / "final").mkdir(parents=True)
    refuse_inside(tmp_path / "run", {"model": "bert-base-uncased", "documents": str(tmp_path)})
    for inside in (f"{tmp_path}/run/final", f"jsonl:{tmp_path}/run", f"{tmp_path}/x/../run"):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(OutputError, match="would remove what is read: model"):
            refuse_inside(tmp_path / "run", {"documents": None, "model": inside})


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "deep" / "one"
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    with pytest.raises(OutputError, match="is a file"):
        claim(folder, "pretrain", IDENTITY)
    with pytest.raises(OutputError, match="a file is where a folder should be"):
        claim(folder / "below", "pretrain", IDENTITY)


def test_snapshots_that_cannot_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "deep" / "one"
    folder.mkdir(parents=True)
    with pytest.raises(InputError, match="was not written by isthmus"):
        read_snapshot(folder)
    for damage in (b'{"verb"', b"\xff\xfe"):
        (folder / SNAPSHOT).write_bytes(damage)
        with pytest.raises(InputError, match=r"isthmus\.json is damaged") as caught:
            read_snapshot(folder)
        assert str(folder / SNAPSHOT) in caught.value.what


def test_a_whole_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "deep" / "one"

    def torn() -> None:
        with whole_folder(folder) as partial:
            (partial / "a").write_text("1")
            assert not folder.exists()
            raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        torn()
    assert not folder.exists()
    with whole_folder(folder) as partial:
        assert not list(partial.iterdir()), "what a torn attempt left is gone"
        (partial / "b").write_text("2")
    assert [file.name for file in folder.iterdir()] == ["b"]
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_json_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "value.json"
    write_json(file, {"naïve": [1, 2]})
    assert json.loads(file.read_text(encoding="utf-8")) == {"naïve": [1, 2]}

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("isthmus.config.output.os.fsync", full)
    with pytest.raises(OutputError, match="no space left on the disk"):
        write_json(file, {"new": 1})
    assert json.loads(file.read_text(encoding="utf-8")) == {"naïve": [1, 2]}


def test_a_folder_behind_a_closed_door(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    stat = Path.stat

    def refused(path: Path, **options: Any) -> os.stat_result:
        if closed in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    usage = shutil.disk_usage
    monkeypatch.setattr(Path, "stat", refused)
    monkeypatch.setattr(
        "isthmus.config.output.shutil.disk_usage", lambda p: usage(p) if refused(Path(p)) else None
    )
    with pytest.raises(OutputError, match="no permission to write") as caught:
        claim(closed / "runs" / "x", "pretrain", IDENTITY)
    assert str(closed / "runs" / "x") in caught.value.what
