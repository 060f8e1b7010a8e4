"""The parts of an inverted index, as its files hold them and its kernels take them.

Documents are numbered by position, similar ones near each other. They are divided into blocks,
blocks into groups, groups into cells; the last block may be shorter. A list is the postings of one
term in one block. Lists are ordered by term and block, and so are their postings.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt

CELL = 32  # documents that share a bound
CELLS = 8  # cells of a group; a list can be entered at any group
GROUP = CELL * CELLS

Array = npt.NDArray[Any]


class Shape(NamedTuple):
    """How many documents there are and a block has; lists are long from some length on."""

    documents: int
    block: int
    long_from: int


class Lists(NamedTuple):
    """Where the lists, postings and records of each term start; block, bound, length of each list.

    The bound is the highest weight. Long lists have a record each.
    """

    term_lists: Array
    term_postings: Array
    term_records: Array
    list_blocks: Array
    list_bounds: Array
    list_lengths: Array


class Postings(NamedTuple):
    """Offset and weight of every posting; per record the bounds of cells and starts of groups."""

    offsets: Array
    weights: Array
    cell_bounds: Array
    group_starts: Array


class Allowed(NamedTuple):
    """Which documents, by position, and which blocks hold one of them; both empty: all."""

    documents: Array
    blocks: Array


class Plan(NamedTuple):
    """Where a query meets the index: what to read of each block (rows) for each term (columns).

    Records are -1 where there is none. A cell's bound in a record times the unit is what the term
    adds to a score there at most. Totals are what a document of the block can score at most.
    """

    weights: Array
    starts: Array
    lengths: Array
    records: Array
    units: Array
    totals: Array


class Block(NamedTuple):
    """A block as it is made: its lists in the order of terms, and records of the long ones."""

    terms: Array
    bounds: Array
    lengths: Array
    offsets: Array
    weights: Array
    cell_bounds: Array
    group_starts: Array
