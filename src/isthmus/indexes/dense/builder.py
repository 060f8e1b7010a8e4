"""Building a dense index: vectors are appended block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from isthmus.config.output import writing
from isthmus.errors import InputError
from isthmus.indexes.arrays import flush, give_up, mapped, write_header
from isthmus.indexes.construction import (
    VectorBuilder,
    complete,
    document_writer,
    read_progress,
    record_progress,
    refuse_empty,
    start_anew,
)
from isthmus.indexes.dense.index import VECTORS, unusable
from isthmus.indexes.manifest import Description, workplace
from isthmus.records import Document

_NORM_ROWS = 2**16


class DenseBuilder(VectorBuilder):
    """Takes documents with their vectors, block by block, and makes a dense index of them."""

    def __init__(self, folder: Path, description: Description) -> None:
        assert description.dimension is not None
        assert description.dtype is not None
        self._folder = folder
        self._description = description
        self._dimension = description.dimension
        self._dtype = np.dtype(description.dtype).newbyteorder("<")
        self._row_bytes = self._dimension * self._dtype.itemsize
        with writing(folder):
            self.rows, offset = self._resume()
            self._index = workplace(folder) / "index"
            self._documents = document_writer(folder, description, offset)
            self._vectors: BinaryIO = (self._index / VECTORS).open("r+b" if self.rows else "wb")
            write_header(self._vectors, self._dtype, 0, self._dimension)
            self._vectors.truncate(self._vectors.tell() + self.rows * self._row_bytes)
            self._vectors.seek(0, 2)

    def add(self, documents: Sequence[Document], vectors: npt.NDArray[np.floating[Any]]) -> None:
        """Appends one block and records it; once this returns, no crash can undo it."""
        assert vectors.shape == (len(documents), self._dimension)
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

    def stored_vectors(self, folder: Path) -> Iterator[Any]:
        """All vectors of a finished segment, in place."""
        yield mapped(folder / VECTORS, folder)

    def finish(self, request: Mapping[str, Any]) -> Path:
        """The finished index under its final name; `request` is what `isthmus rerun` repeats."""
        refuse_empty(self.rows, self._description)
        with writing(self._folder):
            self._documents.finish()
            write_header(self._vectors, self._dtype, self.rows, self._dimension)
            flush(self._vectors)
            self._vectors.close()
            vectors = np.load(self._index / VECTORS, mmap_mode="r")
            norm = _largest_norm(vectors)
            return complete(self._folder, self._description, request, self.rows, norm)

    def _resume(self) -> tuple[int, int]:
        """Rows and bytes of documents that earlier work left whole; 0 and 0 when it starts anew."""
        file = workplace(self._folder) / "index" / VECTORS
        progress = read_progress(self._folder, self._description)
        if progress is not None and file.is_file():
            rows, header = progress["rows"], BytesIO()
            write_header(header, self._dtype, 0, self._dimension)
            if file.stat().st_size >= header.tell() + rows * self._row_bytes:
                return rows, progress["offset"]
        start_anew(self._folder)
        return 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._documents.close()
        give_up(self._vectors)


def _largest_norm(vectors: npt.NDArray[np.floating[Any]]) -> float:
    blocks = range(0, len(vectors), _NORM_ROWS)
    return max(
        float(np.linalg.norm(vectors[start : start + _NORM_ROWS].astype(np.float64), axis=1).max())
        for start in blocks
    )
