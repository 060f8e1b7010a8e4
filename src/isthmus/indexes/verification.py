"""Whether an index is what its manifest says: its files, their structure, its segments."""

from __future__ import annotations

from pathlib import Path

from isthmus.errors import MismatchError
from isthmus.indexes import kinds
from isthmus.indexes.arrays import mapped
from isthmus.indexes.documents import DOCUMENTS, ORDER, check_passages, read_documents
from isthmus.indexes.integrity import check, damaged
from isthmus.indexes.manifest import (
    MANIFEST,
    SEGMENTS,
    TITLES,
    Kind,
    Manifest,
    Segment,
    shape_of,
    stated_manifest,
)
from isthmus.indexes.structure import below, refusing, require, shaped


def read_manifest(folder: Path, kind: Kind | None = None) -> Manifest:
    """The manifest of an index whose files are what was written, of this kind where one is named.

    Anything less is refused.
    """
    manifest = stated_manifest(folder)
    if manifest.segments is None:
        shape = shape_of(manifest, manifest.documents, manifest.layout)
        check(folder, manifest.files, examine=lambda: examine(folder, manifest), shape=shape)
    else:
        check(folder, manifest.files)
    for segment in manifest.segments or ():
        _check_segment(folder, manifest, segment)
    if kind is None:
        return manifest
    if manifest.kind != kind:
        wanted = TITLES[kind]
        raise MismatchError(
            f"the index {str(folder)!r} is {TITLES[manifest.kind]}, not {wanted}",
            "open it with open_searcher, which knows all types",
        )
    if manifest.segments is not None:
        raise MismatchError(
            f"the index {str(folder)!r} was added to and consists of segments",
            f"isthmus sync {folder} DOCUMENTS --compact; or open it with open_searcher",
        )
    return manifest


def _check_segment(folder: Path, manifest: Manifest, segment: Segment) -> None:
    """Refuses a segment that is not of this index: the manifest may be another's."""
    found = stated_manifest(folder / SEGMENTS / segment.name)
    mine, theirs = ({**one.identity(), "corpus": None} for one in (manifest, found))
    if mine != theirs or found.documents != segment.documents:
        why = f"its segment {segment.name!r} is of another index"
        raise damaged(folder / MANIFEST, why, folder)


def examine(folder: Path, manifest: Manifest) -> None:
    """Refuses an index in one piece whose parts point beside each other."""
    with refusing(folder, DOCUMENTS):
        table = read_documents(folder)
        table.validate(full=True)
        require(table.num_rows == manifest.documents, "it has other documents than are stated")
        check_passages(table, manifest.passages is not None)
    with refusing(folder, ORDER):
        order = mapped(folder / ORDER, folder)
        shaped(order, (2, manifest.documents), "<i8")
        below(order, manifest.documents)
    kinds.examine(folder, manifest)
