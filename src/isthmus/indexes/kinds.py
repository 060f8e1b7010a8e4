"""What the kinds of indexes do differently: how each is built, opened, checked and read back.

What a kind needs is imported when it is first used: a search of one does not load the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from isthmus.indexes.arrays import mapped
from isthmus.indexes.manifest import Description, Kind, Manifest
from isthmus.indexes.segments.living import Part
from isthmus.indexes.structure import refusing, shaped
from isthmus.records import Document

FIELDS: dict[Kind, str] = {"dense": "dense", "inverted": "sparse"}
"""What Milvus calls the vectors of a kind; bm25 has none."""
_ROWS = 2**12


class Builder(Protocol):
    """Takes documents, block by block, and makes an index of them."""

    @property
    def rows(self) -> int:
        """Documents added so far, those of an interrupted builder included."""

    def add(self, documents: Sequence[Document], vectors: Any) -> None:
        """Appends documents with their vectors, if the kind has any."""

    def absorb(self, folder: Path, part: Part, stopped: Callable[[], bool]) -> bool:
        """Appends the living documents of a finished segment; False if it was stopped before."""

    def finish(self, request: Mapping[str, Any]) -> Path:
        """The finished index under its final name; `request` is what was asked for."""

    def __enter__(self) -> Self:
        """The builder itself."""

    def __exit__(self, *_: object) -> None:
        """Closes its files."""


def builder_for(folder: Path, description: Description) -> Builder:
    """A builder of an index of the described kind."""
    if description.kind == "bm25":
        from isthmus.indexes.bm25.builder import Bm25Builder

        return Bm25Builder(folder, description)
    if description.kind == "dense":
        from isthmus.indexes.dense.builder import DenseBuilder

        return DenseBuilder(folder, description)
    from isthmus.indexes.inverted.builder import InvertedBuilder

    return InvertedBuilder(folder, description)


def open_whole(folder: Path, kind: Kind, hnsw: bool = False) -> Any:
    """The index in one piece in a folder; a dense one is searched by its graph, if so wanted."""
    if kind == "bm25":
        from isthmus.indexes.bm25.index import Bm25Index

        return Bm25Index.open(folder)
    if kind == "dense":
        from isthmus.indexes.dense.index import DenseIndex

        return DenseIndex.open(folder, hnsw)
    from isthmus.indexes.inverted.index import InvertedIndex

    return InvertedIndex.open(folder)


def examine(folder: Path, manifest: Manifest) -> None:
    """Raises if the vectors of an index in one piece do not fit its manifest."""
    if manifest.kind == "dense":
        from isthmus.indexes.dense.index import VECTORS

        assert manifest.dtype is not None
        assert manifest.dimension is not None
        with refusing(folder, VECTORS):
            vectors = mapped(folder / VECTORS, folder)
            expected = (manifest.documents, manifest.dimension)
            shaped(vectors, expected, np.dtype(manifest.dtype).str)
    elif manifest.kind == "inverted":
        from isthmus.indexes.inverted import structure

        structure.examine(folder, manifest)


def searched_vectors(folder: Path, manifest: Manifest) -> Iterator[Any]:
    """All vectors of an index in one piece as search multiplies them, some rows at a time."""
    if manifest.kind == "dense":
        from isthmus.indexes.dense.index import VECTORS

        vectors = mapped(folder / VECTORS, folder)
        for first in range(0, len(vectors), _ROWS):
            yield vectors[first : first + _ROWS].astype(np.float32)
        return
    from isthmus.indexes.inverted.forward import weighed_rows
    from isthmus.indexes.inverted.quantisation import searched

    assert manifest.inverted is not None
    for matrix in weighed_rows(folder):
        names = [f"row {number}" for number in range(matrix.shape[0])]
        yield searched(matrix, manifest.inverted, matrix.shape[1], names)
