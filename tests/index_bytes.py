"""A look at every byte of an index, however often it was read before."""

from __future__ import annotations

from pathlib import Path

from isthmus.indexes.index import Index
from isthmus.indexes.integrity import forget
from isthmus.indexes.manifest import Manifest, read_manifest


def verify(folder: Path) -> Manifest:
    """The manifest, after all files of all segments matched their checksums and each other."""
    for segment in Index(folder, read_manifest(folder)).segments:
        for part in {name.partition("/")[0] for name in segment.about.files}:
            forget(segment.folder / part, segment.about.files_of(part))
        segment.check()
    return read_manifest(folder)
