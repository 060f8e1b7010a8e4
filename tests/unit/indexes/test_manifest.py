"""An index folder is whole or refused with what to do; a received one reaches nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import BM25, DENSE, documents, index_of, vectors
from tests.index_bytes import verify

from isthmus.config.safe_names import plain
from isthmus.config.sealed_json import UnreadableError, read_bounded, sealed
from isthmus.errors import InputError
from isthmus.indexes.index import Index
from isthmus.indexes.integrity import described
from isthmus.indexes.manifest import FORMAT, MANIFEST, SEGMENTS, read_manifest
from isthmus.indexes.writer import IndexWriter

DEEP = "[" * 200_000
OUTSIDE = [
    "/etc/passwd", "../victim", "a/../../victim", "segments/../../victim", "a\\b", "", ".", "..",
    "segments/", "segments/..", "C:victim", "a\0b", "\ud800", "x" * 256,
]  # fmt: skip
BROKEN: list[Any] = [
    b"", b"[]", b"{}", b"null", b"\xff\xfe", b'{"format": 1', DEEP.encode(),
    b'{"format": 1, "a": ' + DEEP.encode(), b'{"format": ' + b"9" * 5000 + b"}",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fields = {"bm25": BM25, "dense": DENSE}
    return index_of(tmp_path / "index", documents(), fields, {"dense": vectors()}).folder


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes a manifest as one would who means it: its checksum holds."""
    file = folder / MANIFEST
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(sealed(values)))


def refusal(folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        Index.open(folder)
    return caught.value


def test_a_manifest_tells_what_filled_the_index_and_vouches_for_itself(folder: Path) -> None:
    manifest = verify(folder)
    assert (list(manifest.fields), manifest.documents) == (["bm25", "dense"], 50)
    assert manifest.encoders["dense"].fingerprint == "e0"
    file = folder / MANIFEST
    file.write_text(file.read_text().replace('"k1": 1.2', '"k1": 1.3'))
    assert "is damaged: its checksum does not hold" in refusal(folder).what


def test_another_format_is_refused(folder: Path) -> None:
    for version in (FORMAT + 1, True, "1", None):
        edit(folder, lambda values: values.update(format=version))  # noqa: B023
        if version is not True:
            assert "has format version" in refusal(folder).what


def test_what_is_no_index(folder: Path, tmp_path: Path) -> None:
    assert "there is no index" in refusal(tmp_path / "nowhere").what
    (tmp_path / "file").write_text("")
    assert "is a file" in refusal(tmp_path / "file").what
    assert refusal(tmp_path).expected == str(folder), "those inside are named"
    (folder / MANIFEST).unlink()
    assert "has no manifest.json" in refusal(folder).what
    os.mkfifo(folder / MANIFEST)  # which is not waited for
    assert "has no manifest.json" in refusal(folder).what
    with pytest.raises(UnreadableError, match="not a file"):
        read_bounded(folder / MANIFEST)


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_are_plain(name: str) -> None:
    with pytest.raises(ValueError, match="not a plain file name"):
        plain(name)


@pytest.mark.parametrize("place", ["files", "deleted", "segment", "field"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_leads_outside_is_refused(folder: Path, place: str, name: str) -> None:
    def change(values: dict[str, Any]) -> None:
        (segment,) = values["segments"]
        if place == "segment":
            segment["name"] = name
        elif place == "field":
            values["fields"][name] = values["fields"]["dense"]
            segment["fields"][name] = segment["fields"]["dense"]
        else:
            segment["files"][name] = {"bytes": 8, "xxh3": "0"}
            segment |= {"deleted": name, "dead": 1} if place == "deleted" else {}

    edit(folder, change)
    for use in (read_manifest, Index.open, IndexWriter):
        with pytest.raises(InputError, match=r"manifest\.json' is damaged") as caught:
            use(folder)
        assert "isthmus doctor" in caught.value.fix


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_what_is_no_manifest_is_refused(folder: Path, content: bytes) -> None:
    (folder / MANIFEST).write_bytes(content)
    assert "manifest.json" in refusal(folder).what or "format version" in refusal(folder).what


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("segments/0/documents", 10**400), ("segments/0/documents", -1),
        ("segments/0/documents", 49), ("segments/0/documents", 1.5), ("segments/0/dead", 1),
        ("segments/0/passages", 50), ("fields/dense/dimension", 10**30), ("segments/0/files", []),
        ("fields/dense/dimension", 0), ("segments/0/fields/dense/largest_norm", float("nan")),
        ("segments/0/fields/dense/largest_norm", None), ("fields/dense/type", "bm25"),
        ("segments/0/fields/bm25/tokens", 3), ("fields", {}), ("segments", {}), ("surprise", 1),
        ("fusion/candidates", 0), ("passages", {"length": 16, "overlap": 0.1}),
    ],
)  # fmt: skip
def test_values_of_no_index_are_refused(folder: Path, path: str, value: Any) -> None:
    def change(values: Any) -> None:
        *parts, last = (int(one) if one.isdigit() else one for one in path.split("/"))
        for part in parts:
            values = values[part]
        values[last] = value

    edit(folder, change)
    assert "is damaged" in refusal(folder).what


@pytest.mark.parametrize(
    "rows", [np.array([-1]), np.array([50]), np.array([3, 3]), np.array([[1]]), np.array([1.0])]
)
def test_deleted_rows_are_rows(folder: Path, rows: np.ndarray) -> None:
    with IndexWriter(folder) as writer:
        writer.delete(["d0"])
        writer.commit()
    (file,) = (folder / SEGMENTS).rglob("deleted-*.npy")
    np.save(file, rows)
    stored = described(file.parent, [file.name])[file.name].model_dump()
    edit(folder, lambda values: values["segments"][0]["files"].update({file.name: stored}))
    assert "deleted-1.npy' is damaged" in refusal(folder).what


def change_something(folder: Path) -> None:
    with IndexWriter(folder) as writer:
        writer.delete(["d0"])
        writer.commit()
        writer.merge(everything=True)


@pytest.mark.parametrize("link", [f".{MANIFEST}.partial", ".lock", f"{SEGMENTS}/000002", "x"])
def test_links_are_not_written_through(folder: Path, tmp_path: Path, link: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious.npy").write_text("precious")
    (folder / link).symlink_to(victim / "precious.npy" if link[0] == "." else victim)
    with pytest.raises(InputError, match="is a symbolic link") as caught:
        change_something(folder)
    assert "cp -rL" in caught.value.fix
    assert [file.name for file in victim.iterdir()] == ["precious.npy"]
    assert (victim / "precious.npy").read_text() == "precious"


def test_links_are_read_through(folder: Path, tmp_path: Path) -> None:
    """As downloads lie in a cache: names here, contents elsewhere."""
    for file in [file for file in folder.rglob("*") if file.is_file() and file.name != ".lock"]:
        place = tmp_path / "linked" / file.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file)
    assert len(Index.open(tmp_path / "linked")) == 50
    with pytest.raises(InputError, match="is a symbolic link"):
        IndexWriter(tmp_path / "linked")
