"""Pointwise mutual information of the n-grams of a corpus, one row per token, beside the corpus.

N-grams are counted exactly, those of one range of first tokens at a time, so that memory is bounded
whatever the size of the corpus. Each is a number, its tokens packed: sorted, equal ones of two, of
three and of four tokens stand side by side.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from isthmus.config.output import writing
from isthmus.errors import InputError
from isthmus.progress import Bar
from isthmus.text.corpus import Ints, TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer

ORDERS = (2, 3, 4)
HELD = 1 << 23  # n-grams at a time, of all threads; each takes some 80 bytes
_READ = 1 << 18  # places of a block at a time, to know how many n-grams there are
_THREADS = 8  # more would wait for memory
Codes = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]


class PmiColumn:
    """PMI of the 2-, 3- and 4-gram that starts at each token of each document, memory-mapped."""

    def __init__(self, values: Values, lengths: npt.NDArray[np.integer[Any]]) -> None:
        self.values = values
        self._starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> Values:
        """[tokens of the document, 3]; 0 where rare, NaN where there is no n-gram."""
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.values[self._starts[row] : self._starts[row + 1]]


def pmi_column(corpus: TokenisedCorpus, tokenizer: Tokenizer, minimum_count: int) -> PmiColumn:
    """The PMI of every n-gram of a corpus, computed on all cores unless it is there already.

    PMI(w1..wn) = log p(w1..wn) - sum of log p(wk), each p relative to all n-grams of its order;
    0 for an n-gram that occurs less than `minimum_count` times. An n-gram that would cross the end
    of its document or contain a special token does not exist.
    """
    file = corpus.folder / f"pmi-{minimum_count}.npy"
    shape = (int(corpus.lengths.sum(dtype=np.int64)), len(ORDERS))
    if not file.is_file():
        with writing(file), FileLock(corpus.folder / ".pmi.lock"):
            if not file.is_file():
                unfinished = file.with_name(f".{file.name}.partial")
                values = np.lib.format.open_memmap(unfinished, "w+", np.dtype("<f4"), shape)
                values[:] = np.nan
                _fill(values, _Ngrams(corpus, tokenizer), minimum_count)
                values.flush()
                unfinished.rename(file)
    try:
        values = np.load(file, mmap_mode="r")
        if values.shape != shape:
            raise ValueError(f"their shape is {values.shape}, not {shape}")
    except (ValueError, EOFError) as error:
        raise InputError(
            f"{str(file)!r} is damaged: {error}",
            "remove the file: it is computed again",
        ) from None
    return PmiColumn(values, corpus.lengths)


def _fill(values: Values, ngrams: _Ngrams, minimum_count: int) -> None:
    threads = min(os.cpu_count() or 1, _THREADS)
    ranges = list(ngrams.ranges(HELD // threads))
    work = partial(ngrams.weigh, values, minimum_count)
    with (
        Bar("weigh n-grams", sum(some.size for some in ranges), unit="n-grams") as bar,
        ThreadPoolExecutor(threads) as pool,
    ):
        for some in pool.map(work, ranges):
            bar.advance(some.size)


class _Range(NamedTuple):
    """N-grams whose first token has a code from `low` to `high`, and the second from `then`."""

    low: int
    high: int
    then: int
    after: int
    size: int  # no more than so many


class _Ngrams:
    """The n-grams of a corpus; its regular tokens have codes from 1 on, and 0 ends an n-gram."""

    def __init__(self, corpus: TokenisedCorpus, tokenizer: Tokenizer) -> None:
        self.corpus = corpus
        counts = np.zeros(tokenizer.rows, dtype=np.int64)
        for tokens, _ in corpus.blocks():
            assert tokens.max(initial=0) < len(counts), "another tokenizer made the corpus"
            counts += np.bincount(tokens, minlength=len(counts))
        counts[tokenizer.special_ids] = 0
        self.ids = np.concatenate([[-1], np.flatnonzero(counts)])
        self.counts = np.concatenate([[0], counts[self.ids[1:]]])
        self.codes = np.zeros(len(counts), dtype=np.uint64)
        self.codes[self.ids[1:]] = np.arange(1, len(self.ids))
        self.bits = len(self.ids).bit_length()
        self.totals = dict.fromkeys(ORDERS, 0)
        for tokens, offsets in corpus.blocks():
            for start in range(0, len(tokens), _READ):
                places = np.arange(start, min(start + _READ, len(tokens)))
                _, *following = self._follow(tokens, offsets, places)
                for order, codes in zip(ORDERS, following, strict=True):
                    self.totals[order] += int(np.count_nonzero(codes))
        with np.errstate(divide="ignore", invalid="ignore"):  # of code 0
            self.single = np.log(self.counts) - np.log(self.counts.sum())

    def ranges(self, held: int) -> Iterator[_Range]:
        """All n-grams, so many at a time; more only where one pair of tokens is more frequent."""
        codes = len(self.ids)
        widest = 1 << 64 - 3 * self.bits  # the first of four tokens has what the others leave
        for low, high in _cut(self.counts, held, widest):
            size = int(self.counts[low:high].sum())
            if size <= held:
                yield _Range(low, high, 1, codes, size)
                continue
            seconds = np.zeros(codes, dtype=np.int64)
            for tokens, offsets in self.corpus.blocks():
                places = np.flatnonzero(tokens == self.ids[low])
                _, second, *_ = self._follow(tokens, offsets, places)
                seconds += np.bincount(second.astype(np.int64), minlength=codes)
            for then, after in _cut(seconds, held, codes):
                yield _Range(low, high, then, after, int(seconds[then:after].sum()))

    def weigh(self, values: Values, minimum_count: int, some: _Range) -> _Range:
        """Writes the PMI of the n-grams of a range to where they begin."""
        keys, places = self._read(some)
        order = np.argsort(keys)
        keys = keys[order]
        found = np.empty((len(keys), len(ORDERS)), dtype=np.float32)
        for number, size in enumerate(ORDERS):
            grams = keys >> np.uint64((ORDERS[-1] - size) * self.bits)
            first = np.ones(len(grams), dtype=np.bool_)
            np.not_equal(grams[1:], grams[:-1], out=first[1:])
            starts = np.flatnonzero(first)
            counts = np.diff(starts, append=len(grams))
            information = self._information(grams[starts], counts, size, some.low)
            information[counts < minimum_count] = 0
            information[grams[starts] & self._last == 0] = np.nan
            found[order, number] = np.repeat(information.astype(np.float32), counts)
        values[places] = found
        return some

    def _information(
        self, grams: Codes, counts: Counts, size: int, low: int
    ) -> npt.NDArray[np.float64]:
        with np.errstate(divide="ignore", invalid="ignore"):  # of those that are too short
            information: npt.NDArray[np.float64] = np.log(counts) - np.log(self.totals[size])
            for place in reversed(range(size)):
                codes = grams >> np.uint64(place * self.bits)
                # The first is not cut: it has all bits that the others leave.
                codes = codes & self._last if place < size - 1 else codes + np.uint64(low)
                information -= self.single[codes]
        return information

    @property
    def _last(self) -> np.uint64:
        """The bits of the last token of an n-gram."""
        return np.uint64((1 << self.bits) - 1)

    def _read(self, some: _Range) -> tuple[Codes, Counts]:
        """The n-gram of four tokens, or of what there is of it, and its place in the corpus."""
        keys = np.empty(some.size, dtype=np.uint64)
        places = np.empty(some.size, dtype=np.int64)
        lowest, highest = self.ids[some.low], self.ids[some.high - 1]
        bits = np.uint64(self.bits)
        filled = start = 0
        for tokens, offsets in self.corpus.blocks():
            there = np.flatnonzero((tokens >= lowest) & (tokens <= highest))
            first, second, *others = self._follow(tokens, offsets, there)
            chosen = (second >= some.then) & (second < some.after)
            key = first[chosen] - np.uint64(some.low)
            for code in (second, *others):
                key = key << bits | code[chosen]
            end = filled + len(key)
            keys[filled:end] = key
            places[filled:end] = there[chosen] + start
            filled = end
            start += len(tokens)
        return keys[:filled], places[:filled]

    def _follow(self, tokens: Ints, offsets: Ints, places: npt.NDArray[np.intp]) -> Iterator[Codes]:
        """Codes of the tokens at some places of a block, of the ones after them, and so on."""
        last = offsets[np.searchsorted(offsets, places, side="right")] - 1  # of the document
        codes = self.codes[tokens[places]]
        yield codes
        for _ in ORDERS:
            joined = (codes > 0) & (places < last)
            places = np.minimum(places + 1, last)
            codes = self.codes[tokens[places]] * joined
            yield codes


def _cut(counts: Counts, held: int, widest: int) -> Iterator[tuple[int, int]]:
    """Ranges of codes from 1 on that occur so often in all, unless it is one alone."""
    ends = np.cumsum(counts)
    low = 1
    while low < len(counts):
        fitting = int(np.searchsorted(ends, ends[low - 1] + held, side="right"))
        high = max(low + 1, min(fitting, low + widest))
        yield low, high
        low = high
