"""What a field of vectors is to an index: its search, its filling, and its rows read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from isthmus.indexes.manifest import FieldCounts
from isthmus.records import Document

Rows = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_] | None
"""Which rows of a segment may be found; None: all."""
Answer = tuple[Rows, npt.NDArray[np.float64]]
"""Rows and scores, best first."""


class VectorSearch(Protocol):
    """The search of a field of vectors in one segment; queries are prepared once for all."""

    def prepared(self, vectors: Any, query_ids: Sequence[str]) -> Any:
        """The queries as `answers` takes them."""

    def answers(
        self, queries: Any, depth: int, mask: Mask, floors: npt.NDArray[np.float64]
    ) -> list[Answer]:
        """The best rows of each query, exactly; scores below the `floors` may be left out."""


class FieldBuilder(Protocol):
    """What fills a field of vectors."""

    rows: int

    def checked(self, documents: Sequence[Document], vectors: Any) -> Any:
        """One block as it is stored; what cannot be is refused, and nothing written."""

    def append(self, block: Any) -> None:
        """Appends one block."""

    def flush(self) -> dict[str, int]:
        """Brings everything to the disk; what to record."""

    def finish(self) -> FieldCounts:
        """Completes the files; what is known of the rows."""

    def close(self) -> None:
        """Closes its files."""


class RowReader(Protocol):
    """Reads the rows of a field once more, in ascending order."""

    def take(self, rows: Rows) -> Any:
        """The vectors of these rows."""
