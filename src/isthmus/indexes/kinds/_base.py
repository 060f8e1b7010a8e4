"""What a kind of index declares, so that opening, building and growing need not name it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, cast

from isthmus.indexes.index import Index
from isthmus.indexes.kinds import kinds
from isthmus.indexes.manifest import Description, Manifest
from isthmus.indexes.segments.living import Part
from isthmus.records import Document


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
        """The finished index under its final name; `request` is what `isthmus rerun` repeats."""

    def __enter__(self) -> Self:
        """The builder itself."""

    def __exit__(self, *_: object) -> None:
        """Closes its files."""


class IndexKind(ABC):
    """One kind of index: its files, its builder, its search."""

    title: ClassVar[str]
    """With its article: "a dense index"."""
    needed: ClassVar[tuple[str, ...]]
    """Fields of the manifest that an index in one piece must have."""
    oldest_format: ClassVar[int] = 1
    """The oldest format version that can still be read."""
    field: ClassVar[str | None] = None
    """What search engines call its vectors; None if it has none."""

    def examine(self, folder: Path, manifest: Manifest) -> None:  # noqa: B027 - optional
        """Raises if the files of an index in one piece do not fit each other."""

    @abstractmethod
    def builder(self, folder: Path, description: Description) -> Builder:
        """A builder of an index in this folder."""

    @abstractmethod
    def open(self, folder: Path, hnsw: bool) -> Any:
        """The index in one piece in this folder."""

    @abstractmethod
    def open_segments(self, folder: Path, hnsw: bool) -> Index:
        """The index in segments in this folder."""

    def check_growing(self, folder: Path, manifest: Manifest) -> None:  # noqa: B027 - optional
        """Raises if documents cannot be added to this index or deleted from it."""

    def searched_vectors(self, folder: Path, manifest: Manifest) -> Iterator[Any]:
        """All vectors of an index in one piece as search multiplies them, some rows at a time."""
        raise NotImplementedError(f"{self.title} holds no vectors")


def kind_of(name: str) -> IndexKind:
    """The kind of this name."""
    return cast(IndexKind, kinds.load(name)())
