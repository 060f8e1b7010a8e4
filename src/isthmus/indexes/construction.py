"""Building that survives a crash: what is done stays done, and an index appears whole or not.

An index under construction lives in `.NAME.building/`: its files in `index/`, and beside them
`progress.json`, replaced after each block has reached the disk. A builder that resumes cuts the
files to what is recorded there and goes on. The last step is one rename of `index/`.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.config.output import (
    differences,
    publish,
    reserved,
    write_json,
    write_snapshot,
    writing,
)
from isthmus.config.sealed_json import UnreadableError, read_mapping, sealed
from isthmus.errors import InputError, OutputError
from isthmus.indexes.documents import DOCUMENTS, DocumentStore, DocumentWriter
from isthmus.indexes.manifest import (
    MANIFEST,
    PROGRESS,
    Description,
    Layout,
    keeps_work,
    workplace,
    write_manifest,
)
from isthmus.indexes.replacement import check_replaceable, not_an_index
from isthmus.indexes.segments.living import Part
from isthmus.indexes.verification import read_manifest
from isthmus.records import Document

ABSORBED = 8192  # documents of a segment that are copied at a time


def already_built(folder: Path, description: Description, overwrite: bool = False) -> bool:
    """Whether the folder holds this very index; anything else in it is refused.

    To overwrite, other indexes may be in it, or damaged ones; nothing but indexes.
    """
    if folder.is_file():
        raise OutputError(
            f"--output {str(folder)!r} is a file",
            "choose another --output",
        )
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    if overwrite:
        check_replaceable(folder)
    if not (folder / MANIFEST).is_file():
        if overwrite:
            return False
        raise not_an_index(folder)
    try:
        changed = differences(description.identity(), read_manifest(folder).identity())
    except InputError:
        if overwrite:
            return False
        raise
    if changed and overwrite:
        return False
    if changed:
        raise OutputError(
            f"--output {str(folder)!r} already holds another index: it differs in "
            f"{', '.join(changed)}",
            "choose another --output, or replace what is there: --overwrite",
        )
    shutil.rmtree(workplace(folder), ignore_errors=True)
    return True


def start_anew(folder: Path) -> Path:
    """An empty folder to write an index into, under its workplace."""
    shutil.rmtree(workplace(folder), ignore_errors=True)
    index = workplace(folder) / "index"
    index.mkdir(parents=True)
    return index


def document_writer(folder: Path, description: Description, offset: int) -> DocumentWriter:
    """What writes the documents of an index under construction, from `offset` on."""
    passages = description.passages is not None
    return DocumentWriter(workplace(folder) / "index", description.texts, offset, passages=passages)


def record_progress(folder: Path, description: Description, counts: Mapping[str, int]) -> None:
    """Records what has reached the disk; `offset` is where the documents end."""
    progress = {"identity": description.identity(), **counts}
    write_json(workplace(folder) / PROGRESS, sealed(progress))


def read_progress(
    folder: Path, description: Description, counts: Collection[str] = ("rows",)
) -> dict[str, int] | None:
    """The progress that earlier work on this very index recorded; None if its files are not whole.

    It holds these counts and `offset`, where the documents end.
    """
    try:
        progress = read_mapping(workplace(folder) / PROGRESS)
        stored = (workplace(folder) / "index" / DOCUMENTS).stat().st_size
    except (UnreadableError, OSError):
        return None
    same = progress.pop("identity", None) == description.identity()
    if not same or progress.keys() != {*counts, "offset"}:
        return None
    if not all(type(count) is int and 0 <= count < 2**53 for count in progress.values()):
        return None
    return progress if stored >= progress["offset"] else None


def complete(
    folder: Path,
    description: Description,
    request: Mapping[str, Any],
    documents: int,
    largest_norm: float | None = None,
    layout: Layout | None = None,
) -> Path:
    """The finished index under its final name; `request` is what was asked for."""
    index = workplace(folder) / "index"
    write_snapshot(index, "index", request, results={"documents": documents})
    write_manifest(index, description, documents, largest_norm, layout)
    _check_whole(index, documents)
    publish(index, folder, replace=False)
    shutil.rmtree(workplace(folder), ignore_errors=True)
    return folder


def _check_whole(index: Path, documents: int) -> None:
    """Refuses to publish an index that lost files or documents while it was being built."""
    try:
        read_manifest(index)
        found = len(DocumentStore(index))
    except (InputError, OSError, ValueError) as error:
        reason = error.what if isinstance(error, InputError) else str(error)
    else:
        if found == documents:
            return
        reason = f"it has {found:,} documents, not {documents:,}"
    raise OutputError(
        f"the index that was built in {str(index)!r} is not complete: {reason}",
        "remove this folder and run the same command again, one at a time",
    )


@contextmanager
def place_to_build(folder: Path) -> Iterator[None]:
    """Keeps others from building an index of this name during the block.

    A workplace in which nothing was recorded to go on from is removed at the end.
    """
    with reserved(folder):
        try:
            with writing(folder):
                yield
        finally:
            if not keeps_work(folder):
                shutil.rmtree(workplace(folder), ignore_errors=True)


class VectorBuilder(ABC):
    """What builders of vectors have in common."""

    @abstractmethod
    def add(self, documents: Sequence[Document], vectors: Any) -> None:
        """Appends one block and records it; once this returns, no crash can undo it."""

    @abstractmethod
    def stored_vectors(self, folder: Path) -> Iterator[Any]:
        """All vectors of a finished segment as `add` takes them, some rows at a time."""

    def absorb(self, folder: Path, part: Part, stopped: Callable[[], bool]) -> bool:
        """Appends the living documents of a finished segment; False if it was stopped before."""
        first = 0
        for vectors in self.stored_vectors(folder):
            last = first + vectors.shape[0]
            rows = part.rows[slice(*np.searchsorted(part.rows, [first, last]))]
            for start in range(0, len(rows), ABSORBED):
                if stopped():
                    return False
                block = rows[start : start + ABSORBED]
                self.add(part.store.documents(block), vectors[block - first])
            first = last
        return True


def refuse_empty(rows: int, description: Description) -> None:
    """Refuses a corpus without documents: there is nothing to search in it."""
    if not rows:
        raise InputError(
            f"the corpus {description.corpus.spec} has no documents",
            "check the path and the format of the corpus",
        )
