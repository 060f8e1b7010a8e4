"""Building BM25 in bounded memory: sorted blocks of postings are spilled, then merged.

The documents of a segment are read from its store, so that nothing need be recorded while they
come. Blocks that were spilled survive a crash. Merging reads them, a range of terms at a time, and
is done again when it is interrupted.
"""

from __future__ import annotations

import re
import shutil
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from isthmus.indexes.bm25.analyzer import Analyzer
from isthmus.indexes.bm25.postings import Source, write_block, write_merged
from isthmus.indexes.documents import DocumentStore
from isthmus.indexes.manifest import Bm25Field, FieldCounts
from isthmus.progress import Bar

MEMORY = 1.0  # GiB
_DOCUMENTS = 1024  # analysed at a time
_TOKEN_BYTES, _TERM_BYTES = 64, 250  # held while a block is sorted
_BLOCK = re.compile(r"block-([0-9]+)-([0-9]+)")  # from which row to which


def build_postings(
    folder: Path, about: Bm25Field, store: DocumentStore, memory: float = MEMORY
) -> FieldCounts:
    """Fills a folder with the postings of all documents, holding `memory` GiB of them at most.

    Interrupted and run again, it resumes after the last block that was spilled.
    """
    folder.mkdir(exist_ok=True)
    analyzer = Analyzer(about.settings)
    spilled = _spilled(folder)
    done = spilled[-1][1] if spilled else 0
    vocabulary, tokens, lengths = _Numbers(), array("i"), array("i")

    def spill(last: int) -> None:
        nonlocal vocabulary, tokens, lengths, done
        block = folder / f"block-{done}-{last}"
        partial = folder / f".{block.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        write_block(partial, vocabulary, tokens, np.array(lengths))
        partial.rename(block)
        spilled.append((done, last))
        vocabulary, tokens, lengths, done = _Numbers(), array("i"), array("i"), last

    with Bar("building bm25", len(store), "documents", done) as bar:
        for first in range(done, len(store), _DOCUMENTS):
            last = min(first + _DOCUMENTS, len(store))
            for document in store.documents(np.arange(first, last)):
                terms = analyzer.terms(document.contents(about.titles))
                tokens.extend(map(vocabulary.__getitem__, terms))
                lengths.append(len(terms))
            bar.advance(last - first)
            if _TOKEN_BYTES * len(tokens) + _TERM_BYTES * len(vocabulary) >= memory * 2**30:
                spill(last)
    if lengths:
        spill(len(store))
    blocks = [folder / f"block-{first}-{last}" for first, last in spilled]
    found = merge_postings(folder, [Source(block) for block in blocks], memory)
    for block in blocks:  # renamed first: one that is half removed would be taken for a whole one
        block.rename(partial := block.with_name(f".{block.name}.partial"))
        shutil.rmtree(partial)
    return found


def merge_postings(folder: Path, sources: Sequence[Source], memory: float = MEMORY) -> FieldCounts:
    """Fills a folder with the postings of all living documents of others, one after the other."""
    return FieldCounts(tokens=write_merged(folder, sources, max(1, int(memory * 2**30))))


def _spilled(folder: Path) -> list[tuple[int, int]]:
    """The blocks that earlier work left, as far as they follow each other; others are removed."""
    found = sorted(
        (int(match[1]), int(match[2]))
        for entry in folder.iterdir()
        if (match := _BLOCK.fullmatch(entry.name))
    )
    kept: list[tuple[int, int]] = []
    for first, last in found:
        if first == (kept[-1][1] if kept else 0):
            kept.append((first, last))
        else:
            shutil.rmtree(folder / f"block-{first}-{last}")
    return kept


class _Numbers(dict[str, int]):
    """Numbers terms in the order in which they are first looked up."""

    def __missing__(self, term: str) -> int:
        number = self[term] = len(self)
        return number
