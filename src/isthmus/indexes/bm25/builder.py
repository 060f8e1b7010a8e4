"""Building a BM25 index in bounded memory: sorted blocks of postings are spilled, then merged.

A block that has been spilled is recorded and survives a crash. Merging reads the blocks, a range
of terms at a time, and is done again when it is interrupted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from isthmus.config.output import writing
from isthmus.errors import InputError
from isthmus.indexes.bm25.analyzer import Analyzer
from isthmus.indexes.bm25.postings import Source, write_block, write_merged
from isthmus.indexes.construction import (
    ABSORBED,
    complete,
    document_writer,
    read_progress,
    record_progress,
    refuse_empty,
    start_anew,
)
from isthmus.indexes.documents import blocks
from isthmus.indexes.manifest import Description, workplace
from isthmus.indexes.segments.living import Part
from isthmus.progress import notice, waiting
from isthmus.records import Document

MEMORY = 1.0  # GiB
DOCUMENTS = 1024  # analysed and written at a time
_TOKEN_BYTES, _TERM_BYTES = 64, 250  # held while a block is sorted


class Bm25Builder:
    """Takes documents and makes a BM25 index of them, holding `memory` GiB of postings at most."""

    def __init__(self, folder: Path, description: Description, memory: float = MEMORY) -> None:
        assert description.bm25 is not None
        self._folder = folder
        self._description = description
        self._settings = description.bm25
        self._analyzer = Analyzer(description.bm25)
        self._memory = max(1, int(memory * 2**30))
        with writing(folder):
            self.rows, self._sources, offset = self._resume()
            self._spilled = len(self._sources)
            self._documents = document_writer(folder, description, offset)
        self._begin_block()

    def add(self, documents: Sequence[Document], _vectors: None = None) -> None:
        """Appends documents; what a crash can undo are those since the last full block."""
        self._copy(documents)
        for document in documents:
            terms = self._analyzer.terms(document.contents(self._description.titles))
            self._tokens.extend(map(self._vocabulary.__getitem__, terms))
            self._lengths.append(len(terms))
        held = _TOKEN_BYTES * len(self._tokens) + _TERM_BYTES * len(self._vocabulary)
        if held >= self._memory:
            self._spill()

    def absorb(self, folder: Path, part: Part, stopped: Callable[[], bool]) -> bool:
        """Appends the living documents of a finished segment; False if it was stopped before."""
        for start in range(0, len(part.rows), ABSORBED):
            if stopped():
                return False
            self._copy(part.store.documents(part.rows[start : start + ABSORBED]))
        self._sources.append(Source(folder, part.lives))
        return True

    def finish(self, request: Mapping[str, Any]) -> Path:
        """The finished index under its final name; `request` is what was asked for."""
        refuse_empty(self.rows, self._description)
        if self._lengths:
            self._spill()
        with writing(self._folder):
            self._documents.finish()
            index = workplace(self._folder) / "index"
            write_merged(index, self._sources, self._settings, self._memory)
            return complete(self._folder, self._description, request, self.rows)

    def refuse_wordless(self) -> None:
        """Refuses a corpus of which no document has a term."""
        if self.rows and not self._spilled and not self._vocabulary:
            raise InputError(
                f"no document of {self._description.corpus.spec} has a word to search for",
                "check the format of the corpus, or set bm25.stopwords=none",
            )

    def _copy(self, documents: Sequence[Document]) -> None:
        """Appends documents without their postings."""
        with writing(self._folder):
            self._documents.add(documents)
            self.rows += len(documents)

    def _begin_block(self) -> None:
        self._vocabulary = _Numbers()
        self._tokens, self._lengths = array("i"), array("i")

    def _spill(self) -> None:
        with writing(self._folder):
            block = self._block(self._spilled)
            write_block(block, self._vocabulary, self._tokens, np.array(self._lengths))
            self._spilled += 1
            counts = {"rows": self.rows, "blocks": self._spilled}
            offset = self._documents.flush()
            record_progress(self._folder, self._description, {**counts, "offset": offset})
        self._sources.append(Source(block))
        self._begin_block()

    def _block(self, number: int) -> Path:
        return workplace(self._folder) / f"block-{number}"

    def _resume(self) -> tuple[int, list[Source], int]:
        """Rows, blocks and bytes of documents that earlier work left whole; else it starts anew."""
        progress = read_progress(self._folder, self._description, ("rows", "blocks"))
        if progress is not None:
            with suppress(InputError):
                spilled = [Source(self._block(number)) for number in range(progress["blocks"])]
                return progress["rows"], spilled, progress["offset"]
        start_anew(self._folder)
        return 0, [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._documents.close()


class _Numbers(dict[str, int]):
    """Numbers terms in the order in which they are first looked up."""

    def __missing__(self, term: str) -> int:
        number = self[term] = len(self)
        return number


def build_bm25(
    documents: Iterable[Document],
    folder: Path,
    description: Description,
    request: Mapping[str, Any],
    memory: float = MEMORY,
) -> Path:
    """A finished index of the documents under the name `folder`.

    Interrupted and run again, it goes on after the last block that was spilled.
    """
    with Bm25Builder(folder, description, memory) as builder:
        if builder.rows:
            notice(f"resuming after {builder.rows:,} documents")
        for block in blocks(islice(documents, builder.rows, None), DOCUMENTS):
            builder.add(block)
        builder.refuse_wordless()
        with waiting(f"completing {folder}"):
            return builder.finish(request)
