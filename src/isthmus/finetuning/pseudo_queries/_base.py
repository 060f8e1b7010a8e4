"""Queries drawn from documents: which sources, how many of each, and what a source returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xxhash
from pydantic import Field

from isthmus.config import Settings
from isthmus.errors import SettingsError
from isthmus.indexes.documents import blocks
from isthmus.records import Document
from isthmus.registry import Registry

_BLOCK = 1024  # documents
PSEUDO_QUERIES = Registry("isthmus.finetuning.pseudo_queries", "source of pseudo-queries")


@dataclass(frozen=True, slots=True)
class PseudoQuery:
    """A text that stands for a query of its document, and the part of the document it was."""

    text: str
    cut: str = ""  # left out of the document where the pair is trained on; empty: nothing


class SourceSettings(Settings):
    """How many of the pseudo-queries come from a source."""

    share: float = Field(1.0, gt=0, description="relative to the shares of the other sources")


class PseudoQuerySource(ABC):
    """A way to draw queries from a document; a subclass names the settings it takes."""

    Settings: ClassVar[type[SourceSettings]] = SourceSettings

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @abstractmethod
    def draw(
        self, document: Document, count: int, random: np.random.Generator
    ) -> list[PseudoQuery]:
        """Up to `count` different queries; fewer, or none, where the document has no more."""

    def draw_all(
        self, documents: Sequence[Document], count: int, randoms: Sequence[np.random.Generator]
    ) -> list[list[PseudoQuery]]:
        """`draw` for every document; a source that works on batches overrides it."""
        return [
            self.draw(document, count, random)
            for document, random in zip(documents, randoms, strict=True)
        ]


def sources(chosen: Mapping[str, Any]) -> dict[str, PseudoQuerySource]:
    """The sources that settings name, by name; null leaves out one that a recipe had chosen."""
    found, under = {}, "pseudo_queries.sources"
    for name, source, values in PSEUDO_QUERIES.chosen(chosen, under, "share"):
        settings = source.Settings.parse(values, where="pseudo_queries", under=f"{under}.{name}")
        found[name] = source(settings)
    if not found:
        raise SettingsError(
            "pseudo_queries.sources: no source is left",
            "--set pseudo_queries.sources.sentence.share=1",
            ", ".join(PSEUDO_QUERIES.names()),
        )
    return found


def drawn(
    documents: Iterable[Document], chosen: Mapping[str, PseudoQuerySource], count: int, seed: int
) -> Iterator[tuple[str, list[PseudoQuery]]]:
    """By document id, `count` pseudo-queries drawn from the sources in their shares.

    A source that gives too few leaves its part to the others. What is drawn depends on the seed,
    the document's id and its text, not on its place in the corpus.
    """
    shares = np.array([source.settings.share for source in chosen.values()], dtype=float)
    for block in blocks(documents, _BLOCK):
        keys = [f"{document.id}\n{document.text}".encode() for document in block]
        randoms = [np.random.default_rng([seed, xxhash.xxh3_64_intdigest(key)]) for key in keys]
        offered = [source.draw_all(block, count, randoms) for source in chosen.values()]
        for document, random, *queries in zip(block, randoms, *offered, strict=True):
            yield document.id, _mixed(queries, shares, count, random)


def _mixed(
    offered: list[list[PseudoQuery]],
    shares: np.typing.NDArray[np.float64],
    count: int,
    random: np.random.Generator,
) -> list[PseudoQuery]:
    taken: dict[str, PseudoQuery] = {}
    queues = [list(queries) for queries in offered]
    while len(taken) < count and any(queues):
        weights = shares * [bool(queue) for queue in queues]
        query = queues[random.choice(len(queues), p=weights / weights.sum())].pop(0)
        taken.setdefault(query.text, query)
    return list(taken.values())
