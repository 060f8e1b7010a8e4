"""The records that all layers exchange: documents, queries, judgements and rankings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Any


@dataclass(frozen=True, slots=True)
class Document:
    """One unit of retrieval: an identifier, a text and, where there is one, a title.

    `metadata` is whatever else is known of it: texts, finite numbers, true and false, and lists of
    texts or of numbers, by name. It is no part of what is searched; searches are filtered by it.
    """

    id: str
    text: str
    title: str = ""
    # Compared: a document with another value is a changed one.
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False, kw_only=True)

    def contents(self, titles: bool = True) -> str:
        """The text that a model or an index sees: title and text on one line each, or text alone.

        The one place where titles are switched on or off, so that pre-training, fine-tuning,
        indexing and evaluation cannot disagree.
        """
        if not titles or not self.title:
            return self.text
        return f"{self.title}\n{self.text}" if self.text else self.title


@dataclass(frozen=True, slots=True)
class Passage(Document):
    """A stretch of a document that is searched by itself.

    The id is `DOCUMENT#NUMBER`, numbers count from 1; the title is the document's; `heading` is the
    path of headings above the passage; the text is `text[start:end]` of the document's.
    """

    heading: str = ""
    start: int = 0
    end: int = 0

    def contents(self, titles: bool = True) -> str:
        """The text that a model or an index sees: title, if wanted, heading and text by lines."""
        return "\n".join(filter(None, (self.title if titles else "", self.heading, self.text)))

    @property
    def number(self) -> int:
        """Which passage of its document it is, from 1 on."""
        return int(self.id.rpartition("#")[2])


def document_of(passage_id: str) -> str:
    """The id of the document that a passage is of."""
    return passage_id.rpartition("#")[0]


def is_passage(some_id: str) -> bool:
    """Whether an id is that of a passage: DOCUMENT#NUMBER."""
    document_id, _, number = some_id.rpartition("#")
    return bool(document_id) and number.isascii() and number.isdigit()


@dataclass(frozen=True, slots=True)
class Query:
    """One information need as the user typed it."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """The answer to one query: document ids with scores, best first.

    Construction does not sort; `Ranking.sorted` does, with ties broken by document id.
    """

    query_id: str
    document_ids: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.document_ids) == len(self.scores), "one score per document"

    @classmethod
    def sorted(
        cls, query_id: str, scores: Mapping[str, float], depth: int | None = None
    ) -> Ranking:
        """The ranking of a score per document: highest first, equal scores by document id."""
        kept: Iterable[tuple[str, float]] = scores.items()
        if depth is not None and 0 < depth < len(scores):  # sorted are those alone that may be in
            last = nlargest(depth, scores.values())[-1]
            kept = (item for item in kept if item[1] >= last)
        ordered = sorted(kept, key=lambda item: (-item[1], item[0]))[:depth]
        return cls(query_id, tuple(d for d, _ in ordered), tuple(float(s) for _, s in ordered))

    def top(self, depth: int) -> Ranking:
        """The first `depth` entries."""
        return Ranking(self.query_id, self.document_ids[:depth], self.scores[:depth])

    def by_document(self, depth: int | None = None) -> Ranking:
        """The documents of a ranking of passages, each with the score of its best one (max-P)."""
        scores: dict[str, float] = {}
        for passage, score in self:
            document_id = document_of(passage)
            scores[document_id] = max(score, scores.get(document_id, score))
        return Ranking.sorted(self.query_id, scores, depth)

    def __len__(self) -> int:
        return len(self.document_ids)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return iter(zip(self.document_ids, self.scores, strict=True))


@dataclass(frozen=True, slots=True)
class Run:
    """A named set of rankings, one per query: what one system answered."""

    name: str
    rankings: Mapping[str, Ranking] = field(default_factory=dict)


Judgements = Mapping[str, Mapping[str, int]]
"""Relevance by query id and document id."""
