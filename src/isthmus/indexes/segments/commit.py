"""What a writer does to an index folder, in steps after each of which it is whole.

Segments and files of deleted rows are brought to the disk first. Then the manifest is replaced,
which is the commit: before it nothing has changed, after it everything has. What only the old
manifest named is removed last, or by the next writer.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from isthmus.config.output import SNAPSHOT, read_snapshot, write_snapshot
from isthmus.errors import InputError, IsthmusError
from isthmus.indexes.arrays import write_array
from isthmus.indexes.dense.hnsw import HNSW, has_hnsw
from isthmus.indexes.manifest import SEGMENTS, Manifest, is_searched, replace_manifest
from isthmus.indexes.segments.living import Rows

UPDATE = "update"


def write_deleted(folder: Path, name: str, rows: Rows) -> str:
    """The name of a file, now on the disk, that says which rows of a segment no longer count.

    Rows are only ever added to them, so their number tells one file of a segment from the next.
    """
    file = f"{SEGMENTS}/{name}.deleted-{len(rows)}.npy"
    write_array(folder / file, rows)
    return file


def become_segment(folder: Path, manifest: Manifest, name: str) -> None:
    """Gives the files of a whole index, and its graph, a second place as a segment."""
    segment = folder / SEGMENTS / name
    segment.mkdir(parents=True)
    for file in (*manifest.files, SNAPSHOT):
        if (folder / file).is_file():
            _link(folder / file, segment / file)
    _link_hnsw(folder, segment)
    replace_manifest(segment, manifest)


def become_whole(folder: Path, name: str, manifest: Manifest) -> None:
    """Gives the files of the only segment back to the folder itself, and commits that."""
    for file in manifest.files:
        _link(folder / SEGMENTS / name / file, folder / f".{file}")
        (folder / f".{file}").replace(folder / file)
    _link_hnsw(folder / SEGMENTS / name, folder)
    commit(folder, manifest)


def link_index(folder: Path, other: Path) -> None:
    """Gives the files of an index a second place, where it can be changed by itself.

    What an index consists of is never written again, only replaced.
    """
    refuse_links(folder)
    for place, _, files in os.walk(folder):
        inner = other / Path(place).relative_to(folder)
        if ".building" not in str(inner.relative_to(other)):
            inner.mkdir(parents=True, exist_ok=True)
            for name in files:
                if not name.startswith(".") and not name.endswith(".partial"):
                    _link(Path(place, name), inner / name)


def refuse_links(folder: Path) -> None:
    """Refuses a folder with symbolic links, through which writing could change other files."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if (link := Path(place, name)).is_symlink():
                raise InputError(
                    f"{str(link)!r} is a symbolic link: what it leads to could be overwritten",
                    "copy the index with what its links lead to (cp -rL), and write there",
                )


def settle(folder: Path) -> None:
    """Brings every file of a segment to the disk, and the names of both."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
    settle_names(folder)
    settle_names(folder.parent)


def commit(folder: Path, manifest: Manifest) -> None:
    """Replaces the manifest; once this returns, no crash can undo it."""
    if (folder / SEGMENTS).is_dir():
        settle_names(folder / SEGMENTS)
    replace_manifest(folder, manifest)
    settle_names(folder)


def say_updated(folder: Path) -> None:
    """Notes in the snapshot that what made the folder is no longer all that is in it."""
    with suppress(IsthmusError):  # no space for it, or no snapshot: the index is whole without
        snapshot = read_snapshot(folder)
        if snapshot["verb"] != UPDATE:
            write_snapshot(folder, UPDATE, {"began_as": snapshot["identity"]}, {})


def clean(folder: Path, manifest: Manifest, busy: Collection[str]) -> None:
    """Removes what the manifest does not name, except segments that are being made.

    Readers that opened it earlier keep it: what is mapped outlives its name.
    """
    kept = {one.name for one in manifest.segments or ()}
    kept |= {Path(one.deleted).name for one in manifest.segments or () if one.deleted}
    in_segments = manifest.segments is not None
    _remove_all(
        folder,
        lambda entry: (
            (in_segments and (is_searched(entry) or entry.name == HNSW))
            or entry.suffix == ".partial"
        ),
    )
    _remove_all(
        folder / SEGMENTS,
        lambda entry: (
            entry.name not in kept and entry.name.lstrip(".").partition(".")[0] not in busy
        ),
    )
    with suppress(OSError):
        (folder / SEGMENTS).rmdir()


def _remove_all(folder: Path, chosen: Callable[[Path], bool]) -> None:
    for entry in list(folder.iterdir()) if folder.is_dir() else ():
        if chosen(entry):
            with suppress(OSError):  # some systems keep files that are in use: the next writer's
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _link(file: Path, other: Path) -> None:
    other.unlink(missing_ok=True)
    try:
        other.hardlink_to(file)
    except OSError:  # a file system without links
        shutil.copyfile(file, other)


def _link_hnsw(folder: Path, other: Path) -> None:
    if has_hnsw(folder):
        shutil.rmtree(other / HNSW, ignore_errors=True)
        (other / HNSW).mkdir()
        for file in (folder / HNSW).iterdir():
            _link(file, other / HNSW / file.name)


def settle_names(folder: Path) -> None:
    """Brings the names in a folder to the disk."""
    if os.name == "posix":  # elsewhere folders cannot be opened, and need not be
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
