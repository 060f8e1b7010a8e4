"""Arrays on disk: plain .npy files, written in pieces, read in place."""

from __future__ import annotations

import os
from contextlib import suppress
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


class GrowingArray:
    """A .npy file to append rows to; readable by numpy once it is closed."""

    def __init__(self, file: Path, dtype: npt.DTypeLike, *width: int) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._width = width
        self._rows = 0
        self._stream = file.open("wb")
        write_header(self._stream, self._dtype, 0, *width)

    @property
    def nothing(self) -> npt.NDArray[Any]:
        """No rows, of the right type."""
        return np.empty((0, *self._width), dtype=self._dtype)

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Adds rows at the end."""
        assert rows.shape[1:] == self._width
        assert rows.dtype == self._dtype
        self._stream.write(np.ascontiguousarray(rows).data)
        self._rows += len(rows)

    def close(self) -> None:
        """Brings the array to the disk, with its final length."""
        write_header(self._stream, self._dtype, self._rows, *self._width)
        flush(self._stream)
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stream.closed:
            self.close()
