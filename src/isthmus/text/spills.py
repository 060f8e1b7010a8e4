"""Sorted keys with counts, spilled to disk and merged range of keys by range of keys."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.unsignedinteger[Any]]
CountType = np.dtype[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Spill:
    """A file of sorted distinct keys followed by their counts."""

    file: Path
    size: int
    dtype: CountType

    @classmethod
    def open(cls, file: Path, dtype: CountType) -> Spill:
        """A file that `write_spill` wrote."""
        return cls(file, file.stat().st_size // (8 + dtype.itemsize), dtype)

    def keys(self, start: int, stop: int) -> Keys:
        """Keys of a range of entries, read."""
        return np.fromfile(self.file, "<u8", stop - start, offset=8 * start)

    def counts(self, start: int, stop: int) -> Counts:
        """Counts of a range of entries, read."""
        offset = 8 * self.size + self.dtype.itemsize * start
        return np.fromfile(self.file, self.dtype, stop - start, offset=offset)

    def mapped_keys(self) -> Keys:
        """All keys, memory-mapped."""
        if not self.size:
            return np.zeros(0, dtype=np.uint64)
        return np.memmap(self.file, "<u8", mode="r", shape=(self.size,))


def cuts_of(spills: list[Spill], entries: int, jobs: int) -> npt.NDArray[np.int64]:
    """Where to cut each spill, [ranges + 1, spills], so that no range of keys has too many entries.

    A key from every `step` of each of the n spills makes a sample; every n-th key of the sorted
    sample begins a range. A key is at most once in a spill, so fewer than 2 n keys of the sample
    fall into a range, and fewer than 3 n steps of all spills.
    """
    sizes = np.array([spill.size for spill in spills], dtype=np.int64)
    if not sizes.sum():
        return np.zeros((1, len(spills)), dtype=np.int64)
    most = min(entries, -(-int(sizes.sum()) // jobs))
    step = max(1, most // (3 * len(spills)))
    samples = np.concatenate([np.array(spill.mapped_keys()[::step]) for spill in spills])
    samples.sort()
    begins = np.unique(samples[:: len(spills)])[1:]
    cuts = np.zeros((len(begins) + 2, len(spills)), dtype=np.int64)
    for number, spill in enumerate(spills):
        cuts[1:-1, number] = np.searchsorted(spill.mapped_keys(), begins)
    cuts[-1] = sizes
    return cuts


def merge_range(
    spills: list[Spill], low: npt.NDArray[np.int64], high: npt.NDArray[np.int64], file: Path
) -> int:
    """Writes the sums of one range of keys unless they are there; returns the entries read."""
    total = int((high - low).sum())
    if file.is_file():
        return total
    keys = np.empty(total, dtype=np.uint64)
    counts = np.empty(total, dtype=spills[0].dtype)
    filled = 0
    for spill, start, stop in zip(spills, low.tolist(), high.tolist(), strict=True):
        keys[filled : filled + stop - start] = spill.keys(start, stop)
        counts[filled : filled + stop - start] = spill.counts(start, stop)
        filled += stop - start
    order = np.argsort(keys, kind="stable")  # which finds the spills in order, and merges them
    keys, counts = keys[order], counts[order]
    del order
    write_spill(file, keys, counts, spills[0].dtype)
    return total


def write_spill(file: Path, keys: Keys, counts: Counts | None, dtype: CountType) -> None:
    """Writes sorted keys once each, with the sum of their counts, or how often they came."""
    first = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    distinct = keys[starts]
    if counts is None:
        sums = np.diff(starts, append=len(keys)).astype(dtype)
    else:
        sums = np.add.reduceat(counts, starts, dtype=dtype)

    def write(stream: Any) -> None:
        distinct.tofile(stream)
        sums.tofile(stream)

    write_whole(file, write)


def write_whole(file: Path, write: Callable[[Any], None]) -> None:
    """Writes a file that appears under its name only when it is whole."""
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}.partial")
    with partial.open("wb") as stream:
        write(stream)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)


def write_array(
    file: Path, parts: Iterable[npt.NDArray[Any]], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> None:
    """Writes a .npy file from parts that come one after the other."""
    header = {"descr": dtype.str, "fortran_order": False, "shape": shape}

    def write(stream: Any) -> None:
        np.lib.format.write_array_header_1_0(stream, header)
        for part in parts:
            part.tofile(stream)

    write_whole(file, write)
