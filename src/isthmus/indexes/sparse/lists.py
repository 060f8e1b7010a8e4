"""The parts of a sparse field, as its files hold them and its kernels take them.

Documents are numbered by position, similar ones near each other. They are divided into blocks,
blocks into cells; the last ones may be shorter. A list is the postings of one term in one block,
ascending; lists are ordered by term and block, and so are their postings. A short list has the
offset and the weight of every posting. A long list has a record instead: per cell the highest
weight, a mask of the documents that hold the term, and where their weights begin.

A weight that does not fit its type is stored as the largest that does; what is left goes into
another list of the same term and block.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from isthmus.indexes.arrays import mapped

CELL = 32  # documents that share a bound; as many as a mask has bits

Array = npt.NDArray[Any]


class Shape(NamedTuple):
    """How many documents there are and a block has; lists are long from some length on."""

    documents: int
    block: int
    long_from: int


class Lists(NamedTuple):
    """Where the lists, postings, records and masked weights of each term start; then per list.

    The bound is the highest weight.
    """

    term_lists: Array
    term_postings: Array
    term_records: Array
    term_masked: Array
    list_blocks: Array
    list_bounds: Array
    list_lengths: Array


class Postings(NamedTuple):
    """Offset and weight of every posting of short lists; records and weights of long ones.

    A cell's bound in a record is in units of a 255th of the list's bound, rounded up.
    """

    offsets: Array
    weights: Array
    cell_bounds: Array
    cell_masks: Array
    cell_starts: Array
    masked_weights: Array


class Allowed(NamedTuple):
    """Which documents, by position, and which blocks hold one of them; both empty: all."""

    documents: Array
    blocks: Array


class Short(NamedTuple):
    """Short lists that a query meets, by block: postings from where to where, times what."""

    blocks: Array
    starts: Array
    stops: Array
    factors: Array


class Long(NamedTuple):
    """Long lists that a query meets, by block: record, where its weights begin, times what.

    A cell's bound in the record times the unit is what the term adds to a score there at most.
    """

    blocks: Array
    records: Array
    starts: Array
    factors: Array
    units: Array


class Plan(NamedTuple):
    """Where a query meets the index; `blocks` of both say where those of each block begin.

    Totals are what a document of a block can score at most.
    """

    short: Short
    long: Long
    totals: Array


class Block(NamedTuple):
    """A block as it is made: its lists in the order of terms, and records of the long ones."""

    terms: Array
    bounds: Array
    lengths: Array
    offsets: Array
    weights: Array
    cell_bounds: Array
    cell_masks: Array
    cell_starts: Array
    masked_weights: Array


FILES = tuple(f"{name}.npy" for name in ("rows", *Lists._fields, *Postings._fields))


def mapped_part(folder: Path, name: str) -> Array:
    """One of the arrays that the field consists of."""
    return mapped(folder / f"{name}.npy", folder)
