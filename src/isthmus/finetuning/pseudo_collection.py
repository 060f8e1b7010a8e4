"""A collection whose queries are drawn from its own documents: training without labels."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import xxhash

from isthmus.collections import Collection, Corpus
from isthmus.config.output import whole_file
from isthmus.errors import InputError
from isthmus.finetuning.pseudo_queries import drawn, sources
from isthmus.finetuning.settings import PseudoQuerySettings
from isthmus.progress import track
from isthmus.records import Document, Query

TRAIN, HELD_OUT = "train", "dev"
_MOST = 8  # queries of a document, where their number is not set
_FEWEST = 32  # queries: fewer are no batch to learn from
_HASHES = 2**64


class _Drawn(NamedTuple):
    query: str
    document: str
    cut: str
    held_out: bool


@dataclass(eq=False)
class PseudoCollection(Collection):
    """The documents of a corpus, with queries of two splits: train, and dev of held-out ones."""

    corpus: Corpus
    again: Corpus  # once more, to draw from: problems are reported once
    settings: PseudoQuerySettings
    wanted: int  # queries that training takes at most
    seed: int
    file: Path | None = None  # where queries are kept and read from again; None: drawn anew

    def documents(self) -> Iterator[Document]:
        """Every document of the corpus."""
        return self.corpus.documents()

    def fingerprint(self) -> str:
        """A digest of the documents, from which queries follow by settings and seed."""
        return self.corpus.fingerprint()

    def count(self) -> int | None:
        """The number of documents where that is known without reading them."""
        return self.corpus.count()

    def splits(self) -> list[str]:
        """Queries to train on, and those of documents that are held out."""
        return [TRAIN, HELD_OUT]

    def queries(self) -> Iterator[Query]:
        """Every query; its id is its number."""
        return (Query(str(number), one.query) for number, one in enumerate(self._drawn))

    def judgements(self, split: str) -> dict[str, dict[str, int]]:
        """Each query's own document, relevant."""
        return {
            str(number): {one.document: 1}
            for number, one in enumerate(self._drawn)
            if one.held_out == (split == HELD_OUT)
        }

    def cuts(self) -> dict[str, str]:
        """By query id, the part of its document that is left out where the pair is trained on."""
        return {str(number): one.cut for number, one in enumerate(self._drawn) if one.cut}

    @cached_property
    def _drawn(self) -> list[_Drawn]:
        if self.file is not None and self.file.is_file():
            with suppress(ValueError, TypeError):  # damaged: drawn again, the same
                lines = self.file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
                return [_Drawn(**json.loads(line)) for line in lines]
        found = self._draw()
        if self.file is not None:
            with whole_file(self.file) as stream:
                for one in found:
                    stream.write(json.dumps(one._asdict(), ensure_ascii=False) + "\n")
        return found

    def _draw(self) -> list[_Drawn]:
        chosen = sources(self.settings.sources)
        ids = [document.id for document in self.again.documents()]
        held_out = held_out_documents(ids, self.settings.held_out)
        count = self.settings.per_document
        limit = float(_HASHES)
        if count is None:
            count = min(_MOST, -(-self.wanted // len(ids)))
            # Of a large corpus, about as many documents as training takes, chosen by their ids.
            limit *= self.wanted / (count * len(ids))
        taken = (
            document
            for document in track(self.again.documents(), "draw queries", len(ids), "documents")
            if document.id in held_out or _hash(document.id, "taken") <= limit
        )
        found = [
            _Drawn(query.text, document, query.cut, document in held_out)
            for document, queries in drawn(taken, chosen, count, self.seed)
            for query in (queries[:1] if document in held_out else queries)
        ]
        if (trained := sum(not one.held_out for one in found)) < _FEWEST:
            raise InputError(
                f"pseudo_queries: {trained} queries can be drawn from {len(ids):,} documents, and "
                f"{_FEWEST} are needed",
                "give more or longer documents, or add crops as a source of pseudo-queries: a "
                "document of one sentence without a title gives no others",
            )
        return found


def held_out_documents(ids: Iterable[str], wanted: int) -> frozenset[str]:
    """`wanted` of the ids, at most a tenth and at least two, by hashes: the same in every run."""
    known = list(ids)
    count = min(wanted, max(2, len(known) // 10))
    return frozenset(heapq.nsmallest(count, known, key=lambda one: _hash(one, "held out")))


def _hash(document: str, purpose: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{purpose}\n{document}".encode())
