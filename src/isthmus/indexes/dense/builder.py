"""Building a dense field: vectors are appended block by block, and a graph made of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from isthmus.errors import InputError
from isthmus.indexes.arrays import flush, give_up, mapped, write_header
from isthmus.indexes.dense.field import VECTORS, unusable
from isthmus.indexes.dense.hnsw import LEAST, Graph
from isthmus.indexes.documents import Rows
from isthmus.indexes.manifest import DenseField, FieldCounts
from isthmus.records import Document

_NORM_ROWS = 2**16


class DenseBuilder:
    """Takes the vectors of rows, block by block; resumes from what earlier work recorded."""

    def __init__(self, folder: Path, about: DenseField, recorded: Mapping[str, int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._about = about
        self._dtype = np.dtype(about.settings.dtype).newbyteorder("<")
        self.rows = recorded.get("rows", 0)
        self._vectors: BinaryIO = (folder / VECTORS).open("r+b" if self.rows else "wb")
        write_header(self._vectors, self._dtype, 0, about.dimension)
        self._vectors.truncate(self._bytes(self.rows))
        self._vectors.seek(0, 2)

    def checked(
        self, documents: Sequence[Document], vectors: npt.NDArray[np.floating[Any]]
    ) -> npt.NDArray[np.floating[Any]]:
        """One block as it is stored; the documents or passages are for messages."""
        assert vectors.shape == (len(documents), self._about.dimension)
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(vectors, dtype=self._dtype)
        wrong = unusable(stored)
        if len(wrong):
            raise InputError(
                f"the vector of document {documents[wrong[0]].id!r} (number "
                f"{self.rows + int(wrong[0]) + 1:,} of the corpus) is not finite in {self._dtype}",
                "check the encoder: its training may have diverged; or store float32",
            )
        return stored

    def append(self, block: npt.NDArray[np.floating[Any]]) -> None:
        """Appends one block."""
        self._vectors.write(np.ascontiguousarray(block).data)
        self.rows += len(block)

    def flush(self) -> dict[str, int]:
        """Brings everything to the disk; what to record."""
        flush(self._vectors)
        return {"rows": self.rows}

    def finish(self) -> FieldCounts:
        """Completes the files of the field; what is known of its rows."""
        write_header(self._vectors, self._dtype, self.rows, self._about.dimension)
        flush(self._vectors)
        self.close()
        vectors = mapped(self._folder / VECTORS, self._folder)
        graph, recall = self._about.settings.graph, None
        if graph is not None and self.rows >= LEAST:
            recall = Graph.build(self._folder, vectors, graph)
        return FieldCounts(largest_norm=_largest_norm(vectors), recall=recall)

    def close(self) -> None:
        """Closes its file."""
        give_up(self._vectors)

    @staticmethod
    def is_whole(folder: Path, about: DenseField, recorded: Mapping[str, int]) -> bool:
        """Whether the files of earlier work hold all that was recorded."""
        if recorded.keys() != {"rows"}:
            return False
        file = folder / VECTORS
        header, dtype = BytesIO(), np.dtype(about.settings.dtype).newbyteorder("<")
        write_header(header, dtype, 0, about.dimension)
        size = header.tell() + recorded["rows"] * about.dimension * dtype.itemsize
        return file.is_file() and file.stat().st_size >= size

    def _bytes(self, rows: int) -> int:
        return self._vectors.tell() + rows * self._about.dimension * self._dtype.itemsize


class DenseRows:
    """The vectors of a segment once more, as they are stored or in another type."""

    def __init__(self, folder: Path, dtype: npt.DTypeLike | None = None) -> None:
        self._vectors = mapped(folder / VECTORS, folder)
        self._dtype = dtype or self._vectors.dtype

    def take(self, rows: Rows) -> Any:
        """The vectors of these rows."""
        return self._vectors[rows].astype(self._dtype)


def _largest_norm(vectors: npt.NDArray[np.floating[Any]]) -> float:
    blocks = range(0, len(vectors), _NORM_ROWS)
    return max(
        (
            float(
                np.linalg.norm(vectors[start : start + _NORM_ROWS].astype(np.float64), axis=1).max()
            )
            for start in blocks
        ),
        default=0.0,
    )
