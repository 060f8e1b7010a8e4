"""The search of token vectors: each word of a query meets the nearest of every text (MaxSim).

A text scores the mean, over the tokens of the query, of the largest product with any of its own;
tokens count by how few texts hold them. Where all count alike, as in models that were trained to
be compared so, it is the sum. Every text that may be found is scored: other fields say which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from isthmus.errors import InputError, MismatchError
from isthmus.indexes.arrays import best, mapped
from isthmus.indexes.manifest import FieldCounts, TokensField
from isthmus.indexes.ragged import Places, Ragged, TokenVectors
from isthmus.indexes.structure import below, refusing, require, rising, shaped
from isthmus.indexes.tokens.codes import Asked, Floats, StoredTokens, code_bytes, levels_of
from isthmus.indexes.vectors import Answer, Mask, Rows

CODES, SCALES, STARTS = "codes.npy", "scales.npy", "starts.npy"
PIECES, PIECE_STARTS, HOLDING = "pieces.npy", "piece_starts.npy", "holding.npy"
FILES = (CODES, SCALES, STARTS, PIECES, PIECE_STARTS, HOLDING)
"""The vectors; the word pieces of each text, ascending, and how many texts hold each."""
_AT_ONCE = 1 << 12  # stored vectors that are compared with queries
_NOTHING = -np.inf  # the score of a text without tokens, and of all for a query without any


class TokensSearch:
    """Token vectors of the rows of one segment, memory-mapped."""

    def __init__(
        self,
        folder: Path,
        about: TokensField,
        rows: int,
        ranks: Callable[[Rows], Rows],
    ) -> None:
        self._about = about
        self._ranks = ranks
        self._rows = rows
        self.pieces = Ragged(mapped(folder / PIECES, folder), mapped(folder / PIECE_STARTS, folder))
        self.holding: Places = mapped(folder / HOLDING, folder)
        self.stored = StoredTokens(
            mapped(folder / CODES, folder),
            mapped(folder / SCALES, folder),
            mapped(folder / STARTS, folder),
            self.pieces,
        )

    def prepared(self, vectors: TokenVectors, query_ids: Sequence[str]) -> list[Asked]:
        """The queries as `answers` takes them; their pieces' weights are in place of the ids."""
        about, found = self._about, []
        for number, query_id in enumerate(query_ids):
            tokens = np.asarray(vectors.vectors.row(number), dtype=np.float32)
            if tokens.shape[1:] != (about.dimension,):
                raise MismatchError(
                    f"the token vectors of the queries are of shape {tokens.shape}, and those of "
                    f"the documents have {about.dimension} numbers",
                    "encode queries with the encoder that filled the index",
                )
            if not np.isfinite(tokens).all():
                raise InputError(
                    f"the token vectors of query {query_id!r} are not finite",
                    "check the encoder: its training may have diverged",
                )
            weights = np.asarray(vectors.pieces.row(number), dtype=np.float32)
            found.append(Asked.of(about, tokens, weights))
        return found

    def answers(
        self, queries: list[Asked], depth: int, mask: Mask, floors: npt.NDArray[np.float64]
    ) -> list[Answer]:
        """The best rows of each query; all that are in the mask and have tokens are scored."""
        rows = np.arange(self._rows) if mask is None else np.flatnonzero(mask)
        every = self.scores(queries, rows)
        found = []
        for scores, floor in zip(every, floors, strict=True):
            near = np.flatnonzero((scores >= floor) & (scores > _NOTHING))
            chosen = near[best(scores[near], self._ranks(rows[near]), depth)]
            found.append((rows[chosen], scores[chosen]))
        return found

    def scores(self, queries: Sequence[Asked], rows: Rows) -> npt.NDArray[np.float64]:
        """The score of each of these rows, for each query; -inf of one without tokens."""
        return scores(self._about, queries, self.stored, rows)


def scores(
    about: TokensField, queries: Sequence[Asked], stored: StoredTokens, rows: Rows
) -> npt.NDArray[np.float64]:
    """The score of each of these texts, for each query; -inf of one without tokens."""
    found = np.full((len(queries), len(rows)), _NOTHING)
    lengths = stored.starts[rows + 1] - stored.starts[rows]
    there = np.flatnonzero(lengths)
    ends = np.cumsum(lengths[there])
    first = 0
    while first < len(there):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + _AT_ONCE, side="right")))
        part = there[first:last]
        starts = np.cumsum(lengths[part]) - lengths[part]
        places = np.repeat(stored.starts[rows[part]] - starts, lengths[part])
        places += np.arange(len(places))
        levels = levels_of(stored.codes[places], about.dimension, about.bits)
        scales = stored.scales[places]
        for number, query in enumerate(queries):
            if len(query.weights):
                near = np.maximum.reduceat(query.products(levels, scales), starts, axis=0)
                found[number, part] = (near * query.weights).sum(axis=1)  # each row by itself
        first = last
    return found


def products(about: TokensField, query: Asked, stored: StoredTokens, row: int) -> Floats:
    """The product of each stored vector of a text with each token of a query."""
    first, last = stored.starts[row : row + 2]
    levels = levels_of(stored.codes[first:last], about.dimension, about.bits)
    return query.products(levels, stored.scales[first:last])


def check_tokens(folder: Path, about: TokensField, counts: FieldCounts, rows: int) -> None:
    """Refuses token vectors of another shape than is stated, or places that lead out of them."""
    with refusing(folder, PIECES):
        pieces, starts = mapped(folder / PIECES, folder), mapped(folder / PIECE_STARTS, folder)
        holding = mapped(folder / HOLDING, folder)
        shaped(starts, (rows + 1,), "<i8")
        shaped(pieces, (len(pieces),), "<u4")
        shaped(holding, (len(holding),), "<i8")
        rising(starts, len(pieces))
        below(pieces, len(holding))
        same = np.array_equal(holding, np.bincount(pieces, minlength=len(holding)))
        require(same, "it does not hold each word piece as often as is stated")
    with refusing(folder, STARTS):
        starts = mapped(folder / STARTS, folder)
        shaped(starts, (rows + 1,), "<i8")
        assert counts.vectors is not None
        rising(starts, counts.vectors)
        width = code_bytes(about.dimension, about.bits)
        shaped(mapped(folder / CODES, folder), (counts.vectors, width), "|u1")
        scales = mapped(folder / SCALES, folder)
        shaped(scales, (counts.vectors,), "<f2")
        require(np.isfinite(scales).all() and not (scales < 0).any(), "a scale is no length")
