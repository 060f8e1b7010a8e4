"""Building a dense field: vectors are appended block by block, and a graph made of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.errors import InputError
from isthmus.indexes.arrays import ResumedArray, mapped
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
        rows = recorded.get("rows", 0)
        self._vectors = ResumedArray(folder / VECTORS, self._dtype, rows, about.dimension)

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return self._vectors.rows

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
        self._vectors.append(block)

    def flush(self) -> dict[str, int]:
        """Brings everything to the disk; what to record."""
        self._vectors.flush()
        return {"rows": self.rows}

    def finish(self) -> FieldCounts:
        """Completes the files of the field; what is known of its rows."""
        self._vectors.close()
        vectors = mapped(self._folder / VECTORS, self._folder)
        graph, recall = self._about.settings.graph, None
        if graph is not None and self.rows >= LEAST:
            recall = Graph.build(self._folder, vectors, graph)
        return FieldCounts(largest_norm=_largest_norm(vectors), recall=recall)

    def close(self) -> None:
        """Closes its file."""
        self._vectors.give_up()

    @staticmethod
    def is_whole(folder: Path, about: DenseField, recorded: Mapping[str, int]) -> bool:
        """Whether the files of earlier work hold all that was recorded."""
        if recorded.keys() != {"rows"}:
            return False
        dtype = about.settings.dtype
        return ResumedArray.holds(folder / VECTORS, dtype, recorded["rows"], about.dimension)


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
