"""Whether the arrays of a sparse field point only into each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from isthmus.indexes.manifest import Layout, SparseField
from isthmus.indexes.sparse.forward import StoredPostings
from isthmus.indexes.sparse.lists import CELL, Array, mapped_part
from isthmus.indexes.structure import below, refusing, require, rising, shaped

_RECORDS = 2**12  # compared at a time
_WEIGHTS = {"integer": ("u1", "<u2"), "float": ("<f4",)}


def check_lists(folder: Path, about: SparseField, layout: Layout, count: int) -> None:
    """Refuses lists, postings or records that lead out of other arrays."""
    settings, dimension = about.settings, about.dimension
    weights = _WEIGHTS[settings.weights]
    with refusing(folder, "rows.npy"):
        shaped(rows := mapped_part(folder, "rows"), (count,), "<u4")
        below(rows, count)
    with refusing(folder, "list_lengths.npy"):
        require(layout.block % CELL == 0, "its blocks are not whole cells")
        lengths = mapped_part(folder, "list_lengths")
        require(lengths.ndim == 1 and lengths.dtype.kind in "iu", "it is no list of lengths")
        below(lengths, layout.block + 1)
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
        with refusing(folder, f"{name}.npy"):
            array = mapped_part(folder, name)
            shaped(array, (size,), *kinds)
            if array.dtype.kind == "f":
                require(bool(np.all(np.isfinite(array) & (array >= 0))), "a weight is no number")
    with refusing(folder, "list_blocks.npy"):
        below(mapped_part(folder, "list_blocks"), -(-count // layout.block))
    _examine_records(folder, sizes["records"], layout.block // CELL, lengths[long])
    with refusing(folder, "offsets.npy"):
        below(mapped_part(folder, "offsets"), layout.block)  # kernels score a block at a time
        for _, positions, found in StoredPostings(folder, dimension, layout):
            require(len(positions) == len(found), "it has more postings than weights")
            below(positions, count)


def _examine_terms(folder: Path, terms: int, counts: dict[str, Array]) -> None:
    """Where the lists of each term begin, and what belongs to them, follows from the lengths."""
    with refusing(folder, "term_lists.npy"):
        shaped(lists := mapped_part(folder, "term_lists"), (terms + 1,), "<i8")
        rising(lists, len(counts["lists"]))
    for name, count in counts.items():
        with refusing(folder, f"term_{name}.npy"):
            shaped(starts := mapped_part(folder, f"term_{name}"), (terms + 1,), "<i8")
            expected = np.concatenate([[0], np.cumsum(count)])[lists]
            require(np.array_equal(starts, expected), "terms begin where their lists do not")


def _examine_records(folder: Path, count: int, width: int, lengths: Array) -> None:
    """A record's weights begin in each cell after those of the cells before."""
    kinds = {"cell_bounds": "u1", "cell_masks": "<u4", "cell_starts": "<u2"}
    for name, kind in kinds.items():
        with refusing(folder, f"{name}.npy"):
            shaped(mapped_part(folder, name), (count, width), kind)
    masks, starts = mapped_part(folder, "cell_masks"), mapped_part(folder, "cell_starts")
    with refusing(folder, "cell_masks.npy"):
        for first in range(0, count, _RECORDS):
            part = slice(first, first + _RECORDS)
            bits = np.unpackbits(np.ascontiguousarray(masks[part]).view(np.uint8), axis=1)
            held = bits.reshape(len(bits), width, CELL).sum(axis=2, dtype=np.int64)
            ends = np.cumsum(held, axis=1)
            require(np.array_equal(ends - held, starts[part]), "cells begin elsewhere")
            require(np.array_equal(ends[:, -1], lengths[part]), "cells hold other counts")
