"""Checks of the numbers in an index's files that point into other files.

Compiled kernels and Arrow do not check the numbers they use as places. In an index that was made
to do harm the checksums hold too, so these numbers are compared with what they point into when the
files are first read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.indexes.integrity import damaged


@contextmanager
def refusing(folder: Path, name: str) -> Iterator[None]:
    """Turns a ValueError into the refusal of the file that does not fit."""
    try:
        yield
    except ValueError as error:  # Arrow's are some too
        raise damaged(folder / name, f"it does not fit the index: {error}", folder) from None


def uncompressed(file: Path, start: int = 0) -> None:
    """Raises a ValueError where what lies in an Arrow file could take more memory than the file."""
    import pyarrow as pa

    with pa.memory_map(str(file)) as stream:
        stream.seek(start)
        for message in pa.ipc.MessageReader.open_stream(stream):
            require(message.type in ("schema", "record batch"), f"it holds a {message.type}")
            if message.type == "record batch":
                require(not _is_compressed(message.metadata.to_pybytes()), "it is compressed")


def _is_compressed(metadata: bytes) -> bool:
    """Whether the flatbuffer of a record batch, inside of its message, has its fourth field."""

    def number(place: int, size: int, signed: bool = False) -> int:
        return int.from_bytes(metadata[place : place + size], "little", signed=signed)

    def field(table: int, which: int) -> int:
        fields = table - number(table, 4, signed=True)
        slot = 4 + 2 * which
        return number(fields + slot, 2) if slot < number(fields, 2) else 0

    message = number(0, 4)
    header = message + field(message, 2)
    return field(header + number(header, 4), 3) != 0


def shaped(array: npt.NDArray[np.generic], shape: tuple[int, ...], *kinds: str) -> None:
    """Raises a ValueError unless an array has this shape and one of these types."""
    fits = array.shape == shape and array.dtype in [np.dtype(kind) for kind in kinds]
    require(fits, f"it is {array.dtype} of shape {array.shape}, not {kinds[0]} of {shape}")


def below(numbers: npt.NDArray[Any], limit: int) -> None:
    """Raises a ValueError unless all numbers are at least 0 and below a limit."""
    if numbers.size:
        require(numbers.min() >= 0 and numbers.max() < limit, f"a number is not below {limit:,}")


def rising(starts: npt.NDArray[Any], last: int) -> None:
    """Raises a ValueError unless numbers rise from 0 to the last; differences could overflow."""
    require(starts[0] == 0 and starts[-1] == last, "something is left over")
    below(starts, last + 1)
    require(bool(np.all(starts[1:] >= starts[:-1])), "a part ends before it begins")


def require(holds: object, what: str) -> None:
    """Raises a ValueError that says what is wrong, unless the condition holds."""
    if not holds:
        raise ValueError(what)
