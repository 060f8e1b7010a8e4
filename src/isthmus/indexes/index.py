"""What all indexes have in common, and what those of vectors do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from isthmus.indexes.documents import DocumentStore
from isthmus.indexes.manifest import Manifest
from isthmus.records import Document, Ranking

Answer = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]  # rows and scores, best first


class Documents(Protocol):
    """The documents of an index by row and by id."""

    def __len__(self) -> int: ...

    def id(self, row: int) -> str:
        """The id of the document in a row."""

    def document(self, row: int) -> Document:
        """The document in a row."""

    def row(self, document_id: str) -> int | None:
        """The row of a document, or None."""


class Index(ABC):
    """An index of any kind, in one piece or in segments."""

    manifest: Manifest
    store: Documents

    def __len__(self) -> int:
        return len(self.store)

    @abstractmethod
    def search(
        self,
        queries: Any,
        /,
        depth: int,
        query_ids: Sequence[str],
        among: Collection[str] | None = None,
    ) -> list[Ranking]:
        """The `depth` documents of highest score per query, equal ones by document id."""


class VectorIndex(Index):
    """Documents by inner product: queries are prepared once, and then answered."""

    store: DocumentStore

    def search(
        self,
        vectors: Any,
        depth: int,
        query_ids: Sequence[str],
        among: Collection[str] | None = None,
    ) -> list[Ranking]:
        """The `depth` documents of highest inner product per query, equal ones by document id.

        `among` leaves only the documents of these ids; unknown ids are ignored.
        """
        return self.store.rankings(query_ids, self.find(vectors, depth, query_ids, among))

    def find(
        self,
        vectors: Any,
        depth: int,
        query_ids: Sequence[str],
        among: Collection[str] | None = None,
    ) -> list[Answer]:
        """Rows and scores of what `search` answers."""
        return self.answers(self.prepared(vectors, query_ids), depth, among)

    @abstractmethod
    def prepared(self, vectors: Any, query_ids: Sequence[str]) -> Any:
        """The queries as `answers` takes them; other indexes of the kind take them too."""

    @abstractmethod
    def answers(
        self,
        queries: Any,
        depth: int,
        among: Collection[str] | None = None,
        floors: npt.NDArray[np.float64] | None = None,
    ) -> list[Answer]:
        """Rows and scores of what `search` answers; lower scores than `floors` may be left out."""
