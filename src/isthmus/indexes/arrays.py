"""Arrays on disk: plain .npy files, written in pieces, read in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from isthmus.indexes.documents import flush
from isthmus.indexes.integrity import parsing


def mapped(file: Path, index: Path) -> npt.NDArray[Any]:
    """The array in a .npy file of an index, memory-mapped; a plain ndarray is indexed faster."""
    with parsing(file, index):
        return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))


class GrowingArray:
    """A .npy file to append rows to; readable by numpy once it is closed."""

    def __init__(self, file: Path, dtype: npt.DTypeLike, *width: int) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._width = width
        self._rows = 0
        self._stream = file.open("wb")
        self._write_header()

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
        self._stream.seek(0)
        self._write_header()
        flush(self._stream)
        self._stream.close()

    def _write_header(self) -> None:
        # numpy pads the header of a .npy file so that the number of rows can grow in place.
        shape = (self._rows, *self._width)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._stream, header)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._stream.closed:
            self.close()
