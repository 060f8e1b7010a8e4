"""Whether the files of an index fit each other, so that no loop reads or writes beside them.

Compiled kernels and Arrow do not check the numbers they use as places. In an index that was made
to do harm the checksums hold too, so these numbers are compared with what they point into when the
files are first read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from isthmus.indexes.arrays import mapped
from isthmus.indexes.dense.codes import CODES, SIZES
from isthmus.indexes.dense.index import VECTORS
from isthmus.indexes.documents import DOCUMENTS, ORDER, read_documents
from isthmus.indexes.integrity import damaged
from isthmus.indexes.inverted.forward import StoredPostings
from isthmus.indexes.inverted.index import mapped_part
from isthmus.indexes.inverted.lists import CELL, Array
from isthmus.indexes.manifest import Manifest

_RECORDS = 2**12  # compared at a time
_WEIGHTS = {"integer": ("u1", "<u2"), "float": ("<f4",)}


def examine(folder: Path, manifest: Manifest) -> None:
    """Refuses an index in one piece whose parts point beside each other."""
    with _refusing(folder, DOCUMENTS):
        table = read_documents(folder)
        table.validate(full=True)
        _require(table.num_rows == manifest.documents, "it has other documents than are stated")
    with _refusing(folder, ORDER):
        order = mapped(folder / ORDER, folder)
        _shaped(order, (2, manifest.documents), "<i8")
        _below(order, manifest.documents)
    if manifest.kind == "dense":
        _examine_dense(folder, manifest)
    elif manifest.kind == "inverted":
        _examine_inverted(folder, manifest)


def _examine_dense(folder: Path, manifest: Manifest) -> None:
    assert manifest.dtype is not None
    assert manifest.dimension is not None
    rows, dimension = manifest.documents, manifest.dimension
    kinds = {VECTORS: (np.dtype(manifest.dtype).str, dimension)}
    if manifest.codes is not None:
        kinds |= {CODES: ("i1", dimension), SIZES: ("<f8", 3)}
    for name, (kind, width) in kinds.items():
        with _refusing(folder, name):
            _shaped(mapped(folder / name, folder), (rows, width), kind)


def _examine_inverted(folder: Path, manifest: Manifest) -> None:
    layout, settings, dimension = manifest.layout, manifest.inverted, manifest.dimension
    assert layout is not None
    assert settings is not None
    assert dimension is not None
    weights = _WEIGHTS[settings.weights]
    with _refusing(folder, "rows.npy"):
        _shaped(rows := mapped_part(folder, "rows"), (manifest.documents,), "<u4")
        _below(rows, manifest.documents)
    with _refusing(folder, "list_lengths.npy"):
        _require(layout.block % CELL == 0, "its blocks are not whole cells")
        lengths = mapped_part(folder, "list_lengths")
        _require(lengths.ndim == 1 and lengths.dtype.kind in "iu", "it is no list of lengths")
        _below(lengths, layout.block + 1)
    lengths = lengths.astype(np.int64)
    long = lengths >= layout.long_from
    counts = {
        "lists": np.ones_like(lengths),
        "postings": np.where(long, 0, lengths),
        "records": long.astype(np.int64),
        "masked": np.where(long, lengths, 0),
    }
    _examine_terms(folder, dimension, counts)
    sizes = {name: int(count.sum()) for name, count in counts.items()}
    for name, size, kinds in (
        ("list_blocks", sizes["lists"], ("<u2",)),
        ("list_bounds", sizes["lists"], (*weights, "<u4", "<i8", "<f8")),
        ("offsets", sizes["postings"], ("<u2",)),
        ("weights", sizes["postings"], weights),
        ("masked_weights", sizes["masked"], weights),
    ):
        with _refusing(folder, f"{name}.npy"):
            array = mapped_part(folder, name)
            _shaped(array, (size,), *kinds)
            if array.dtype.kind == "f":
                _require(bool(np.all(np.isfinite(array) & (array >= 0))), "a weight is no number")
    with _refusing(folder, "list_blocks.npy"):
        _below(mapped_part(folder, "list_blocks"), -(-manifest.documents // layout.block))
    _examine_records(folder, sizes["records"], layout.block // CELL, lengths[long])
    with _refusing(folder, "offsets.npy"):
        for _, positions, found in StoredPostings(folder, dimension, layout):
            _require(len(positions) == len(found), "it has more postings than weights")
            _below(positions, manifest.documents)


def _examine_terms(folder: Path, terms: int, counts: dict[str, Array]) -> None:
    """Where the lists of each term begin, and what belongs to them, follows from the lengths."""
    with _refusing(folder, "term_lists.npy"):
        _shaped(lists := mapped_part(folder, "term_lists"), (terms + 1,), "<i8")
        _below(lists, len(counts["lists"]) + 1)
        _require(lists[0] == 0 and lists[-1] == len(counts["lists"]), "lists are left over")
        _require(bool(np.all(np.diff(lists) >= 0)), "a list ends before it begins")
    for name, count in counts.items():
        with _refusing(folder, f"term_{name}.npy"):
            _shaped(starts := mapped_part(folder, f"term_{name}"), (terms + 1,), "<i8")
            expected = np.concatenate([[0], np.cumsum(count)])[lists]
            _require(np.array_equal(starts, expected), "terms begin where their lists do not")


def _examine_records(folder: Path, count: int, width: int, lengths: Array) -> None:
    """A record's weights begin in each cell after those of the cells before."""
    kinds = {"cell_bounds": "u1", "cell_masks": "<u4", "cell_starts": "<u2"}
    for name, kind in kinds.items():
        with _refusing(folder, f"{name}.npy"):
            _shaped(mapped_part(folder, name), (count, width), kind)
    masks, starts = mapped_part(folder, "cell_masks"), mapped_part(folder, "cell_starts")
    with _refusing(folder, "cell_masks.npy"):
        for first in range(0, count, _RECORDS):
            part = slice(first, first + _RECORDS)
            bits = np.unpackbits(np.ascontiguousarray(masks[part]).view(np.uint8), axis=1)
            held = bits.reshape(len(bits), width, CELL).sum(axis=2, dtype=np.int64)
            ends = np.cumsum(held, axis=1)
            _require(np.array_equal(ends - held, starts[part]), "cells begin elsewhere")
            _require(np.array_equal(ends[:, -1], lengths[part]), "cells hold other counts")


@contextmanager
def _refusing(folder: Path, name: str) -> Iterator[None]:
    """Turns a ValueError into the refusal of the file that does not fit."""
    try:
        yield
    except ValueError as error:  # Arrow's are some too
        raise damaged(folder / name, f"it does not fit the index: {error}", folder) from None


def _shaped(array: npt.NDArray[np.generic], shape: tuple[int, ...], *kinds: str) -> None:
    fits = array.shape == shape and array.dtype in [np.dtype(kind) for kind in kinds]
    _require(fits, f"it is {array.dtype} of shape {array.shape}, not {kinds[0]} of {shape}")


def _below(numbers: Array, limit: int) -> None:
    if numbers.size:
        _require(numbers.min() >= 0 and numbers.max() < limit, f"a number is not below {limit:,}")


def _require(holds: object, what: str) -> None:
    if not holds:
        raise ValueError(what)
