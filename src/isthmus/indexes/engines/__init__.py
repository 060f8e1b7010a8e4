"""Search engines that documents and vectors go out to; one file per engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from isthmus.errors import InputError
from isthmus.indexes.contents import Contents
from isthmus.records import Ranking
from isthmus.registry import Registry

engines = Registry("isthmus.indexes.engines", "engine")

ENCODERS = "encoders"
"""What `fill` leaves beside the documents: the fingerprint of the encoder of each field."""
TOKEN = "ISTHMUS_ENGINE_TOKEN"  # noqa: S105 # where it is found, not what it is
"""The environment variable whose value opens a guarded engine."""


class Engine(Protocol):
    """One collection of one engine: at a place, under a name."""

    fields: ClassVar[tuple[str, ...]]
    """The vectors it takes: dense, sparse."""
    files: ClassVar[bool]
    """Whether it is filled from files, which are written into a folder; the place is then that."""

    def __init__(self, place: str, name: str) -> None: ...

    def fill(self, contents: Contents, approximate: bool) -> None:
        """Brings all documents there, or writes the files to load.

        `approximate`: dense vectors get a graph, by which a search sees only some of them.
        """

    def following(self) -> str:
        """What the user has to type next; "" if there is nothing left to do."""

    def encoders(self) -> Mapping[str, str]:
        """The fingerprint of the encoder of each field, as `fill` left it."""

    def search(
        self, field: str, vectors: Any, depth: int, query_ids: Sequence[str]
    ) -> list[Ranking]:
        """The `depth` documents of highest inner product per query, as the engine finds them."""


def read_encoders(found: Any, place: str) -> dict[str, str]:
    """What `fill` left; a collection without it is refused, for it came from elsewhere."""
    if not isinstance(found, dict):
        raise InputError(
            "the collection was not written by isthmus",
            where=place,
            allowed="what `isthmus export` wrote, under the name it was given",
            remedy="check the place and the name (--set name=…)",
        )
    return {str(field): str(fingerprint) for field, fingerprint in found.items()}
