"""A received index cannot reach outside its folder, and what cannot be read is one refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import described, documents, vectors

from isthmus.config.output import SNAPSHOT, read_snapshot
from isthmus.config.safe_names import plain
from isthmus.config.sealed_json import sealed
from isthmus.errors import InputError
from isthmus.indexes import integrity
from isthmus.indexes.construction import PROGRESS, read_progress
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.manifest import MANIFEST, SEGMENTS, workplace
from isthmus.indexes.segments.index import open_index
from isthmus.indexes.segments.writer import IndexWriter
from isthmus.indexes.verification import read_manifest
from isthmus.records import Document

DESCRIPTION = described()
DOCUMENTS = documents()
VECTORS = vectors()

DEEP = "[" * 200_000
OUTSIDE = [
    "/etc/passwd", "../victim", "a/../../victim", "segments/../../victim", "a/b", "a\\b",
    "", ".", "..", "segments/", "segments/..", "C:victim", "a\0b", "\ud800", "x" * 256,
]  # fmt: skip
BROKEN: list[Any] = [
    b"", b"[]", b"{}", b"null", b"\xff\xfe", b'{"format": 1', DEEP.encode(),
    b'{"format": 3, "a": ' + DEEP.encode(), b'{"format": ' + b"9" * 5000 + b"}",
    b'{"format": true}', b'{"format": "3"}', b'{"format": 1e999}', b'{"format": [3]}',
]  # fmt: skip


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes a manifest as one would who means it: its checksum holds."""
    file = folder / MANIFEST
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(sealed(values)))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder outside the index, with a file in it."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious.npy").write_text("precious")
    return tmp_path / "victim"


def change_something(folder: Path) -> None:
    with IndexWriter(folder) as writer:
        writer.add([Document("new", "text")], np.ones((1, 4), np.float32))
        writer.delete(["d0"])
        writer.merge()


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_are_plain(name: str) -> None:
    with pytest.raises(ValueError, match="not a plain file name"):
        plain(name)


@pytest.mark.parametrize("place", ["files", "deleted", "segment"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_leads_outside_is_refused(dense_folder: Path, place: str, name: str) -> None:
    def change(values: dict[str, Any]) -> None:
        stored = {"bytes": 8, "xxh3": "0"}
        segment = {"name": "000001", "documents": 50}
        if place == "files":
            values["files"][name] = stored
        elif place == "deleted":
            values["files"][name] = stored
            values["segments"] = [segment | {"deleted": name}]
        else:
            values["segments"] = [segment | {"name": name}]

    edit(dense_folder, change)
    for use in (read_manifest, open_index, IndexWriter):
        with pytest.raises(InputError, match=r"manifest\.json' is damaged") as caught:
            use(dense_folder)
        assert "isthmus doctor" in caught.value.fix


def test_nothing_outside_is_deleted(dense_folder: Path, victim: Path) -> None:
    precious = victim / "precious.npy"
    stored = integrity.described(victim, ["precious.npy"])["precious.npy"].model_dump()
    edit(dense_folder, lambda values: values["files"].update({str(precious): stored}))
    before = sorted(file.name for file in dense_folder.iterdir())
    with pytest.raises(InputError):
        change_something(dense_folder)
    assert precious.read_text() == "precious"
    assert sorted(file.name for file in dense_folder.iterdir()) == before


@pytest.mark.parametrize(
    "link", [SEGMENTS, "hnsw", f".{MANIFEST}.partial", ".lock", "segments/.000001.building"]
)
def test_links_are_not_written_through(dense_folder: Path, victim: Path, link: str) -> None:
    leads_to_file = link in (f".{MANIFEST}.partial", ".lock")
    (dense_folder / link).parent.mkdir(exist_ok=True)
    (dense_folder / link).symlink_to(victim / "precious.npy" if leads_to_file else victim)
    with pytest.raises(InputError, match="is a symbolic link") as caught:
        change_something(dense_folder)
    assert "cp -rL" in caught.value.fix
    assert [file.name for file in victim.iterdir()] == ["precious.npy"]
    assert (victim / "precious.npy").read_text() == "precious"


def test_links_are_read_through(dense_folder: Path, tmp_path: Path) -> None:
    """As downloads lie in a cache: names here, contents elsewhere."""
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in dense_folder.iterdir():
        (linked / file.name).symlink_to(file)
    assert len(open_index(linked)) == 50
    with pytest.raises(InputError, match="is a symbolic link"):
        IndexWriter(linked)


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_manifest_is_refused(dense_folder: Path, content: bytes) -> None:
    (dense_folder / MANIFEST).write_bytes(content)
    with pytest.raises(InputError, match=r"manifest\.json' is damaged"):
        open_index(dense_folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("documents", 10**400), ("documents", -1), ("documents", 1.5), ("dimension", 10**30),
        ("dimension", 0), ("dimension", None), ("largest_norm", float("nan")), ("dtype", None),
        ("largest_norm", float("inf")), ("kind", "bm25"), ("kind", "inverted"), ("files", []),
        ("files", {"vectors.npy": {"bytes": 10**400, "xxh3": ""}}), ("segments", {}),
        ("layout", {"block": 0, "long_from": 1, "postings": 1}), ("surprise", 1),
    ],
)  # fmt: skip
def test_values_of_no_index_are_refused(dense_folder: Path, key: str, value: Any) -> None:
    edit(dense_folder, lambda values: values.update({key: value}))
    with pytest.raises(InputError, match=r"manifest\.json' is damaged"):
        open_index(dense_folder)


@pytest.mark.parametrize(
    "rows", [np.array([-1]), np.array([50]), np.array([3, 3]), np.array([[1]]), np.array([1.0])]
)
def test_deleted_rows_are_rows(dense_folder: Path, rows: np.ndarray) -> None:
    with IndexWriter(dense_folder) as writer:
        writer.delete(["d0"])
        writer.commit()
    (deleted,) = (dense_folder / SEGMENTS).glob("*.npy")
    np.save(deleted, rows)
    name = f"{SEGMENTS}/{deleted.name}"
    stored = integrity.described(dense_folder, [name])[name].model_dump()
    edit(dense_folder, lambda values: values["files"].update({name: stored}))
    with pytest.raises(InputError, match=r"deleted-1\.npy.* is damaged"):
        open_index(dense_folder)


@pytest.mark.parametrize(
    "results", [[], 1, {"stages": {"first": "../victim"}}, {"stages": {"a": "/etc"}}]
)
def test_stages_of_a_snapshot_are_inside_it(dense_folder: Path, results: Any) -> None:
    values = json.loads((dense_folder / SNAPSHOT).read_text())
    (dense_folder / SNAPSHOT).write_text(json.dumps(values | {"results": results}))
    with pytest.raises(InputError, match=r"isthmus\.json is damaged"):
        read_snapshot(dense_folder)


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_snapshots_that_are_none_are_refused(dense_folder: Path, content: bytes) -> None:
    (dense_folder / SNAPSHOT).write_bytes(content)
    with pytest.raises(InputError, match=r"isthmus\.json is damaged"):
        read_snapshot(dense_folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda values: {"rows": values["rows"]}, lambda values: values | {"rows": -8},
        lambda values: values | {"rows": 10**40}, lambda values: values | {"offset": 1.5},
        lambda values: values | {"rows": True}, lambda values: values | {"rows": [1]},
    ],
)  # fmt: skip
def test_progress_that_is_none_starts_anew(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    with DenseBuilder(tmp_path / "index", DESCRIPTION) as builder:
        builder.add(DOCUMENTS[:8], VECTORS[:8])
    file = workplace(tmp_path / "index") / PROGRESS
    values = json.loads(file.read_text())
    assert read_progress(tmp_path / "index", DESCRIPTION) is not None
    file.write_text(json.dumps(values | {"rows": 7}))
    assert read_progress(tmp_path / "index", DESCRIPTION) is None, "its checksum fails"
    file.write_text(json.dumps(sealed(change(values))))
    assert read_progress(tmp_path / "index", DESCRIPTION) is None
    for content in BROKEN:
        file.write_bytes(content)
        with DenseBuilder(tmp_path / "index", DESCRIPTION) as builder:
            assert builder.rows == 0
