"""Postings on disk: of each term, the rows that contain it and how often, terms in sorted order.

A block that is spilled while a segment is built has these files, and so has every segment, so that
blocks and segments are merged alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from isthmus.indexes.arrays import GrowingArray, flush, mapped, write_array
from isthmus.indexes.integrity import parsing
from isthmus.indexes.structure import below, refusing, require, rising, shaped, uncompressed

VOCABULARY = "vocabulary.arrow"
STARTS = "starts.npy"
ROWS = "rows.npy"
FREQUENCIES = "frequencies.npy"
LENGTHS = "lengths.npy"
FILES = (VOCABULARY, STARTS, ROWS, FREQUENCIES, LENGTHS)

_CHECKED = 2**22  # numbers that are compared at a time
_MAGIC = 8  # bytes that an Arrow file begins with, before its messages
_BYTES = 128  # held for a posting that is being merged, with room for vocabularies

Ints = npt.NDArray[np.int64]


class Postings(NamedTuple):
    """Rows and frequencies of neighbouring terms, and how many of them each term has."""

    rows: npt.NDArray[np.int32]
    frequencies: npt.NDArray[Any]
    counts: Ints


class Source:
    """The living documents of a block or a segment, to be merged with those of others."""

    def __init__(self, folder: Path, lives: npt.NDArray[np.bool_] | None = None) -> None:
        """`lives` says of each row whether it counts; all do where it is None."""
        self._folder = folder
        self._lives = lives
        self._numbers = None if lives is None else np.cumsum(lives, dtype=np.int32) - 1
        self._starts: Ints = np.array(mapped(folder / STARTS, folder))

    def terms(self) -> list[str]:
        """All terms, sorted, also those of which no document is left."""
        terms: list[str] = _read_terms(self._folder).to_pylist()
        return terms

    def lengths(self) -> npt.NDArray[np.int32]:
        """The number of terms in each living document, with repetitions."""
        lengths = mapped(self._folder / LENGTHS, self._folder)
        return lengths if self._lives is None else lengths[self._lives]

    def counts(self, limit: int) -> tuple[Ints, int]:
        """How many documents each term has, and the highest frequency.

        At most `limit` postings are read at a time, or those of one term.
        """
        counts, largest = np.diff(self._starts), 1
        for low, high in _ranges(self._starts, limit):
            _, frequencies, counts[low:high] = self.read(low, high)
            largest = max(largest, int(frequencies.max(initial=1)))
        return counts, largest

    def read(self, low: int, high: int) -> Postings:
        """The postings of the terms from `low` to `high`, rows numbered without the deleted."""
        first, last = self._starts[low], self._starts[high]
        # Mapped anew each time: what was read does not stay in memory.
        rows, frequencies = (
            np.array(mapped(self._folder / name, self._folder)[first:last])
            for name in (ROWS, FREQUENCIES)
        )
        starts = self._starts[low : high + 1] - first
        if self._lives is not None and self._numbers is not None:
            living = self._lives[rows]
            starts = np.concatenate([[0], np.cumsum(living)])[starts]
            rows, frequencies = self._numbers[rows[living]], frequencies[living]
        return Postings(rows, frequencies, np.diff(starts))


def open_vocabulary(folder: Path) -> Callable[[str], int | None]:
    """A function from a term to its number, or None if it is unknown; terms stay on disk."""
    terms = _read_terms(folder)

    @lru_cache(maxsize=2**16)
    def find(term: str) -> int | None:
        place = bisect_left(terms, term, key=lambda value: value.as_py())
        return place if place < len(terms) and terms[place].as_py() == term else None

    return find


def write_block(
    folder: Path, vocabulary: dict[str, int], tokens: Any, lengths: npt.NDArray[np.int32]
) -> None:
    """Writes the postings of documents, whose token numbers are given one after the other."""
    terms = sorted(vocabulary)
    places = np.empty(len(terms), dtype=np.int64)
    places[[vocabulary[term] for term in terms]] = np.arange(len(terms))
    keys = places[np.frombuffer(tokens, dtype=np.int32)]
    keys <<= 32
    keys |= np.repeat(np.arange(len(lengths), dtype=np.uint32), lengths)
    keys.sort()
    new = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    first = np.flatnonzero(new)
    frequencies = np.diff(first, append=len(keys))
    keys = keys[first]
    folder.mkdir(exist_ok=True)
    _write_terms(folder, terms)
    write_array(folder / STARTS, np.searchsorted(keys, np.arange(len(terms) + 1) << 32))
    write_array(folder / ROWS, (keys & 0xFFFFFFFF).astype(np.int32))
    write_array(folder / FREQUENCIES, frequencies.astype(_smallest(frequencies.max(initial=1))))
    write_array(folder / LENGTHS, lengths)


def write_merged(folder: Path, sources: Sequence[Source], memory: int) -> int:
    """Makes the files of all sources, their documents one after the other; the number of tokens.

    Besides vocabularies and 16 bytes a document, it holds `memory` bytes at most, or the
    postings of one term.
    """
    folder.mkdir(exist_ok=True)
    limit = max(1, memory // _BYTES)
    terms, numbers, counts, largest = _union(sources, limit)
    starts = np.concatenate([[0], np.cumsum(counts)])
    each = [source.lengths() for source in sources]
    first_rows = np.cumsum([0, *map(len, each)])
    lengths = np.concatenate(each)
    _write_terms(folder, terms)
    write_array(folder / STARTS, starts)
    write_array(folder / LENGTHS, lengths)
    with (
        GrowingArray(folder / ROWS, np.int32) as all_rows,
        GrowingArray(folder / FREQUENCIES, _smallest(largest)) as all_frequencies,
    ):
        for low, high in _ranges(starts, limit):
            heads = starts[low:high] - starts[low]
            rows = np.empty(starts[high] - starts[low], dtype=np.int32)
            frequencies = np.empty(len(rows), dtype=_smallest(largest))
            for source, own, first_row in zip(sources, numbers, first_rows, strict=False):
                inside = np.searchsorted(own, [low, high])
                found = source.read(*inside)
                mine = own[slice(*inside)] - low
                shift = heads[mine] - (np.cumsum(found.counts) - found.counts)
                places = np.repeat(shift, found.counts) + np.arange(len(found.rows))
                rows[places] = found.rows + np.int32(first_row)
                frequencies[places] = found.frequencies
                np.add.at(heads, mine, found.counts)
            all_rows.append(rows)
            all_frequencies.append(frequencies)
    return int(lengths.sum(dtype=np.int64))


class _Union(NamedTuple):
    """The terms of all sources, sorted, with the number of documents of each."""

    terms: list[str]
    numbers: list[Ints]  # of each source's terms among them
    counts: Ints
    largest: int  # frequency


def _union(sources: Sequence[Source], limit: int) -> _Union:
    """The terms of all living documents; `limit` is that of `Source.counts`."""
    terms = sorted(set().union(*(source.terms() for source in sources)))
    number = {term: place for place, term in enumerate(terms)}
    numbers = []
    counts = np.zeros(len(terms), dtype=np.int64)
    largest = 1
    for source in sources:
        own = np.array([number[term] for term in source.terms()], dtype=np.int64)
        found, highest = source.counts(limit)
        counts[own] += found
        largest = max(largest, highest)
        numbers.append(own)
    # A term that is gone has the number of the one before it, and no postings.
    anew = np.cumsum(counts > 0) - 1
    living = [term for term, count in zip(terms, counts.tolist(), strict=True) if count]
    return _Union(living, [anew[own] for own in numbers], counts[counts > 0], largest)


def _ranges(starts: Ints, limit: int) -> Iterator[tuple[int, int]]:
    """Neighbouring terms that have `limit` postings together, or one term that has more."""
    low, last = 0, len(starts) - 1
    while low < last:
        reached = int(np.searchsorted(starts, starts[low] + limit, side="right")) - 1
        high = min(max(low + 1, reached), last)
        yield low, high
        low = high


def _smallest(largest: int) -> np.dtype[Any]:
    """The narrowest integers that hold a frequency."""
    return np.min_scalar_type(int(largest)).newbyteorder("<")


def _write_terms(folder: Path, terms: Sequence[str]) -> None:
    batch = pa.record_batch({"term": pa.array(terms, pa.large_string())})
    with (folder / VOCABULARY).open("wb") as stream:
        with pa.ipc.new_file(stream, batch.schema) as writer:
            writer.write_batch(batch)
        flush(stream)


def _read_terms(folder: Path) -> Any:
    file = folder / VOCABULARY
    with parsing(file, folder), pa.ipc.open_file(pa.memory_map(str(file))) as reader:
        terms = reader.get_batch(0).column("term")
        # A cast that changes nothing would still import pyarrow.compute.
        return terms if terms.type == pa.large_string() else terms.cast(pa.large_string())


def check_postings(folder: Path, rows: int, tokens: int) -> None:
    """Refuses postings that lead out of the documents, or out of each other."""
    with refusing(folder, LENGTHS):
        shaped(lengths := mapped(folder / LENGTHS, folder), (rows,), "<i4")
        require(bool(np.all(lengths >= 0)), "a document has less than no terms")
        require(int(lengths.sum(dtype=np.int64)) == tokens, "documents have other lengths")
    with refusing(folder, VOCABULARY):
        uncompressed(folder / VOCABULARY, _MAGIC)
        _read_terms(folder).validate(full=True)
    with refusing(folder, STARTS):
        terms, starts = len(_read_terms(folder)), mapped(folder / STARTS, folder)
        shaped(starts, (terms + 1,), "<i8")
        rising(starts, int(starts[-1]))
    for name, kinds in ((ROWS, ("<i4",)), (FREQUENCIES, ("u1", "<u2", "<u4", "<i8", "<u8"))):
        with refusing(folder, name):
            shaped(found := mapped(folder / name, folder), (int(starts[-1]),), *kinds)
            for first in range(0, len(found), _CHECKED):
                part = found[first : first + _CHECKED]
                below(part, rows if name == ROWS else 2**31)
