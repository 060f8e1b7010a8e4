"""A look at every byte of an index, however often it was read before."""

from __future__ import annotations

from pathlib import Path

from isthmus.indexes.integrity import forget
from isthmus.indexes.manifest import SEGMENTS, Manifest, stated_manifest
from isthmus.indexes.verification import read_manifest


def verify(folder: Path) -> Manifest:
    """The manifest, after all files of the index and of its segments matched their checksums."""
    manifest = stated_manifest(folder)
    forget(folder, manifest.files)
    read_manifest(folder)
    for segment in manifest.segments or ():
        verify(folder / SEGMENTS / segment.name)
    return manifest
