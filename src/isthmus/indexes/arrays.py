"""Arrays on disk, the best of many scores, and how many cores there are."""

from __future__ import annotations

import os
from contextlib import suppress
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from isthmus.indexes.integrity import parsing


def mapped(file: Path, index: Path) -> npt.NDArray[Any]:
    """The array in a .npy file of an index, memory-mapped; a plain ndarray is indexed faster."""
    with parsing(file, index):
        return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))


def write_array(file: Path, array: npt.NDArray[Any]) -> None:
    """Writes a .npy file, and brings it to the disk."""
    with file.open("wb") as stream:
        np.save(stream, array)
        flush(stream)


def write_header(stream: BinaryIO, dtype: np.dtype[Any], *shape: int) -> None:
    """Begins a .npy file, anew where it has begun: its rows follow."""
    stream.seek(0)
    # numpy pads the header so that the number of rows can grow in place.
    header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)


def flush(stream: BinaryIO) -> int:
    """Brings what was written to a file down to the disk; the position reached."""
    stream.flush()
    os.fsync(stream.fileno())
    return stream.tell()


def give_up(stream: BinaryIO) -> None:
    """Closes a file, whatever the disk says: everything that counts was flushed before."""
    with suppress(OSError):
        stream.close()


class ResumedArray:
    """A .npy file to append rows to, after those that an interrupted writer had recorded."""

    def __init__(self, file: Path, dtype: npt.DTypeLike, rows: int, *width: int) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._width = width
        self.rows = rows
        self._stream: BinaryIO = file.open("r+b" if rows else "wb")
        write_header(self._stream, self._dtype, 0, *width)
        self._stream.truncate(_bytes(self._dtype, rows, *width))
        self._stream.seek(0, 2)

    @staticmethod
    def holds(file: Path, dtype: npt.DTypeLike, rows: int, *width: int) -> bool:
        """Whether a file is at least as long as so many rows are."""
        return file.is_file() and file.stat().st_size >= _bytes(np.dtype(dtype), rows, *width)

    @property
    def nothing(self) -> npt.NDArray[Any]:
        """No rows, of the right type."""
        return np.empty((0, *self._width), dtype=self._dtype)

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Adds rows at the end."""
        assert rows.shape[1:] == self._width
        assert rows.dtype == self._dtype
        self._stream.write(np.ascontiguousarray(rows).data)
        self.rows += len(rows)

    def flush(self) -> None:
        """Brings all rows to the disk."""
        flush(self._stream)

    def close(self) -> None:
        """Brings the array to the disk, with its final length."""
        write_header(self._stream, self._dtype, self.rows, *self._width)
        flush(self._stream)
        self._stream.close()

    def give_up(self) -> None:
        """Closes the file as it is."""
        give_up(self._stream)


class GrowingArray(ResumedArray):
    """A .npy file to append rows to; readable by numpy once it is closed."""

    def __init__(self, file: Path, dtype: npt.DTypeLike, *width: int) -> None:
        super().__init__(file, dtype, 0, *width)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stream.closed:
            self.close()


def _bytes(dtype: np.dtype[Any], rows: int, *width: int) -> int:
    """The bytes of a .npy file of so many rows."""
    header, dtype = BytesIO(), dtype.newbyteorder("<")
    write_header(header, dtype, 0, *width)
    return header.tell() + rows * dtype.itemsize * prod(width)


def best(
    scores: npt.NDArray[np.floating[Any]], ranks: npt.NDArray[np.int64], depth: int
) -> npt.NDArray[np.int64]:
    """Positions of the `depth` highest scores, best first, equal scores by lower rank.

    Equal scores of equal rank (passages of one document) keep their order.

    All scores equal to the last one that fits are weighed by rank, so that the answer does not
    depend on which of them a partial sort happens to meet first.
    """
    kept = np.arange(len(scores))
    if len(scores) > depth:
        last = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        kept = np.flatnonzero(scores >= last)
    kept = kept[np.argsort(-scores[kept], kind="stable")]
    # One number per document, by score first: sorting by two keys takes twice as long.
    keys = ranks[kept].astype(np.int64)
    keys[1:] += np.cumsum(np.diff(scores[kept]) != 0) << 32
    order: npt.NDArray[np.int64] = kept[np.argsort(keys, kind="stable")][:depth]
    return order


def usable_cores() -> int:
    """The processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
