"""An index folder is whole, or it is refused with a message that says what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.index_bytes import verify

from isthmus.config.sealed_json import UnreadableError, read_bounded, sealed
from isthmus.errors import InputError
from isthmus.indexes.manifest import FORMAT, workplace
from isthmus.indexes.verification import read_manifest


def test_manifest_tells_what_filled_the_index(dense_folder: Path) -> None:
    manifest = read_manifest(dense_folder)
    assert (manifest.kind, manifest.documents, manifest.dimension) == ("dense", 50, 4)
    assert manifest.encoder is not None
    assert manifest.encoder.fingerprint == "e0"
    assert manifest.corpus.fingerprint == "c0"
    assert set(manifest.files) == {"vectors.npy", "documents.arrow", "order.npy"}
    assert verify(dense_folder) == manifest


def _edit(folder: Path, **changes: object) -> None:
    file = folder / "manifest.json"
    file.write_text(json.dumps(sealed({**json.loads(file.read_text()), **changes})))


def _refusal(folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        read_manifest(folder)
    return caught.value


def test_another_format_is_refused(dense_folder: Path) -> None:
    _edit(dense_folder, format=FORMAT + 1)
    error = _refusal(dense_folder)
    assert f"format version {FORMAT + 1}" in error.what
    assert "--upgrade" in error.fix


def test_index_without_manifest_is_half_written(dense_folder: Path) -> None:
    (dense_folder / "manifest.json").unlink()
    assert "half-written: it has no manifest.json" in _refusal(dense_folder).what


def test_a_pipe_is_not_waited_for(dense_folder: Path) -> None:
    (dense_folder / "manifest.json").unlink()
    os.mkfifo(dense_folder / "manifest.json")
    assert "half-written" in _refusal(dense_folder).what
    with pytest.raises(UnreadableError, match="not a file"):
        read_bounded(dense_folder / "manifest.json")


def test_what_is_no_index_at_all(tmp_path: Path) -> None:
    assert "there is no index" in _refusal(tmp_path / "nowhere").what
    (tmp_path / "file").write_text("")
    assert "is a file" in _refusal(tmp_path / "file").what
    (tmp_path / "folder").mkdir()
    assert "is not an index" in _refusal(tmp_path / "folder").what
    assert "perhaps" not in _refusal(tmp_path / "folder").expected
    workplace(tmp_path / "begun").mkdir()
    error = _refusal(tmp_path / "begun")
    assert "is not complete" in error.what


def test_the_indexes_in_a_folder_are_named_instead_of_it(tmp_path: Path) -> None:
    inside = ("b", "index/adapted", ".b.building/index", "b/segments", "x/y/deep")
    for name in inside:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "index" / "hybrid").mkdir()
    (tmp_path / "index" / "hybrid" / "hybrid.json").write_text("{}")
    named = ", ".join(str(tmp_path / name) for name in ("b", "index/adapted", "index/hybrid"))
    assert _refusal(tmp_path).expected == named
