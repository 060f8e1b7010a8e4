"""Vectors as JSON has them, and lines shared out over files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

LARGEST_FILE = 2**24  # engines take requests of up to 100 MB, and smaller ones faster


def numbers(values: Any) -> list[float]:
    """Integers as they are; of floats, those of fewest digits that mean the same in float32."""
    if np.issubdtype(values.dtype, np.integer):
        return list(values.tolist())
    # A float32 as Python writes it has digits that are none of its own: 0.30000001192092896.
    written = pa.array(values.astype(np.float32, copy=False)).cast(pa.string())
    return [float(number) for number in written.to_pylist()]


def term_weights(matrix: Any) -> Iterator[dict[int, float]]:
    """Weights by term, a row of a sparse matrix of scipy at a time."""
    terms, weights = matrix.indices.tolist(), numbers(matrix.data)
    starts = matrix.indptr.tolist()
    for start, end in pairwise(starts):
        yield dict(zip(terms[start:end], weights[start:end], strict=True))


def write_lines(
    folder: Path, suffix: str, lines: Iterable[str], largest: int = LARGEST_FILE
) -> None:
    """Writes 00000.SUFFIX and so on; a file of more than `largest` bytes holds one line.

    What is given as one line stays together, also where it is two.
    """
    size, number = largest, 0
    with ExitStack() as stack:
        for line in lines:
            written = f"{line}\n".encode()
            if size + len(written) > largest:
                stack.close()
                file = folder / f"{number:05d}.{suffix}"
                stream = stack.enter_context(file.open("wb"))
                size, number = 0, number + 1
            stream.write(written)
            size += len(written)
