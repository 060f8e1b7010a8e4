"""Building that survives a crash: what is done stays done, and an index appears whole or not.

An index under construction lives in `.NAME.building/`: its files in `index/`, and beside them
`progress.json`, replaced after each block has reached the disk. Whoever comes back cuts the
files to what is recorded there and goes on. The last step is one rename of `index/`.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

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
from isthmus.indexes.dense.codes import write_codes
from isthmus.indexes.dense.index import VECTORS, unusable
from isthmus.indexes.documents import DOCUMENTS, DocumentStore, DocumentWriter, flush, give_up
from isthmus.indexes.manifest import (
    MANIFEST,
    PROGRESS,
    Description,
    Layout,
    keeps_work,
    read_manifest,
    workplace,
    write_manifest,
)
from isthmus.records import Document

if TYPE_CHECKING:
    from isthmus.indexes.bm25.builder import Bm25Builder
    from isthmus.indexes.inverted.builder import InvertedBuilder

_NORM_ROWS = 2**16


def already_built(folder: Path, description: Description) -> bool:
    """Whether the folder holds this very index; anything else in it is refused."""
    if folder.is_file():
        raise OutputError(
            f"{str(folder)!r} is a file",
            where="--output",
            allowed="a folder that does not exist yet, is empty, or holds the same index",
            remedy="choose another --output",
        )
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    if not (folder / MANIFEST).is_file():
        raise OutputError(
            f"{str(folder)!r} already holds something that is not an index",
            where="--output",
            allowed="a folder that does not exist yet, is empty, or holds the same index",
            remedy="choose another --output, or move what is there",
        )
    mine, theirs = description.identity(), read_manifest(folder).identity()
    changed = differences(mine, theirs)
    if changed:
        raise OutputError(
            f"{str(folder)!r} already holds another index: it differs in {', '.join(changed)}",
            where="--output",
            allowed="a new folder, or the same corpus, encoder and settings",
            remedy="choose another --output, or remove the folder to start anew",
        )
    shutil.rmtree(workplace(folder), ignore_errors=True)
    return True


def start_anew(folder: Path) -> Path:
    """An empty folder to write an index into, under its workplace."""
    shutil.rmtree(workplace(folder), ignore_errors=True)
    index = workplace(folder) / "index"
    index.mkdir(parents=True)
    return index


def record_progress(folder: Path, description: Description, counts: Mapping[str, int]) -> None:
    """Records what has reached the disk; `offset` is where the documents end."""
    progress = {"identity": description.identity(), **counts}
    write_json(workplace(folder) / PROGRESS, sealed(progress))


def read_progress(
    folder: Path, description: Description, counts: Collection[str] = ("rows",)
) -> dict[str, int] | None:
    """What earlier work on this very index recorded; None where its documents are not whole.

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
    """The finished index under its final name; `request` is what `isthmus rerun` repeats."""
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
        f"what was built is not whole: {reason}",
        where=str(index),
        allowed="a workplace that is left alone until the index is built",
        remedy="remove the workplace and run the same command again, and one at a time",
    )


@contextmanager
def place_to_build(folder: Path) -> Iterator[None]:
    """Keeps others from building an index of this name during the block.

    A workplace in which nothing was recorded to go on from is removed at the end.
    """
    with reserved(folder):
        try:
            with writing(folder, resumes=lambda: keeps_work(folder)):
                yield
        finally:
            if not keeps_work(folder):
                shutil.rmtree(workplace(folder), ignore_errors=True)


class DenseBuilder:
    """Takes documents with their vectors, block by block, and makes a dense index of them."""

    def __init__(self, folder: Path, description: Description) -> None:
        assert description.dimension is not None
        assert description.dtype is not None
        self._folder = folder
        self._description = description
        self._dtype = np.dtype(description.dtype).newbyteorder("<")
        with writing(folder):
            self.rows, offset = self._resume()
            self._index = workplace(folder) / "index"
            self._documents = DocumentWriter(self._index, description.texts, offset)
            self._vectors: BinaryIO = (self._index / VECTORS).open("r+b" if self.rows else "wb")
            self._write_header(0)
            self._vectors.truncate(self._vectors.tell() + self.rows * self._row_bytes)
            self._vectors.seek(0, 2)

    @property
    def _row_bytes(self) -> int:
        assert self._description.dimension is not None
        return self._description.dimension * self._dtype.itemsize

    def add(self, documents: Sequence[Document], vectors: npt.NDArray[np.floating[Any]]) -> None:
        """Appends one block and records it; once this returns, no crash can undo it."""
        assert vectors.shape == (len(documents), self._description.dimension)
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(vectors, dtype=self._dtype)
        wrong = unusable(stored)
        if len(wrong):
            raise InputError(
                f"the vector of document {documents[wrong[0]].id!r} is not finite in {self._dtype}",
                where=f"document {self.rows + int(wrong[0]) + 1:,} of the corpus",
                allowed="finite numbers that float32 or float16 can hold",
                remedy="check the encoder: its training may have diverged; or store float32",
            )
        with writing(self._folder):
            self._documents.add(documents)
            self._vectors.write(stored.data)
            flush(self._vectors)
            offset = self._documents.flush()
            self.rows += len(documents)
            record_progress(self._folder, self._description, {"rows": self.rows, "offset": offset})

    def finish(self, request: Mapping[str, Any]) -> Path:
        """The finished index under its final name; `request` is what `isthmus rerun` repeats."""
        refuse_empty(self.rows, self._description)
        with writing(self._folder):
            self._documents.finish()
            self._write_header(self.rows)
            flush(self._vectors)
            self._vectors.close()
            vectors = np.load(self._index / VECTORS, mmap_mode="r")
            norm = _largest_norm(vectors)
            if self._description.codes is not None:
                write_codes(vectors, self._index)
            return complete(self._folder, self._description, request, self.rows, norm)

    def _resume(self) -> tuple[int, int]:
        """Rows and bytes of documents that earlier work left whole; 0 and 0 when it starts anew."""
        file = workplace(self._folder) / "index" / VECTORS
        progress = read_progress(self._folder, self._description)
        if progress is not None and file.is_file():
            rows = progress["rows"]
            if file.stat().st_size >= rows * self._row_bytes:
                return rows, progress["offset"]
        start_anew(self._folder)
        return 0, 0

    def _write_header(self, rows: int) -> None:
        # numpy pads the header of a .npy file so that the number of rows can grow in place.
        self._vectors.seek(0)
        np.lib.format.write_array_header_1_0(
            self._vectors,
            {
                "descr": self._dtype.str,
                "fortran_order": False,
                "shape": (rows, self._description.dimension),
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._documents.close()
        give_up(self._vectors)


def refuse_empty(rows: int, description: Description) -> None:
    """Refuses a corpus without documents: there is nothing to search in it."""
    if not rows:
        raise InputError(
            "the corpus has no documents",
            where=description.corpus.spec,
            allowed="at least one document",
            remedy="check the path and the format of the corpus",
        )


def _largest_norm(vectors: npt.NDArray[np.floating[Any]]) -> float:
    blocks = range(0, len(vectors), _NORM_ROWS)
    return max(
        float(np.linalg.norm(vectors[start : start + _NORM_ROWS].astype(np.float64), axis=1).max())
        for start in blocks
    )


def builder_for(
    folder: Path, description: Description
) -> DenseBuilder | InvertedBuilder | Bm25Builder:
    """What builds an index of this kind."""
    if description.kind == "dense":
        return DenseBuilder(folder, description)
    if description.kind == "bm25":
        from isthmus.indexes.bm25.builder import Bm25Builder

        return Bm25Builder(folder, description)
    from isthmus.indexes.inverted.builder import InvertedBuilder  # brings numba

    return InvertedBuilder(folder, description)
