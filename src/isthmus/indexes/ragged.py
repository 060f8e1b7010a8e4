"""Rows of different length in one array, and token vectors made of such rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Rows of any number of values each: row i is `values[starts[i]:starts[i + 1]]`."""

    values: npt.NDArray[Any]
    starts: Places

    @classmethod
    def of(cls, rows: Sequence[npt.NDArray[Any]], empty: npt.NDArray[Any]) -> Ragged:
        """Rows put one after another; `empty` says what values are where there are none."""
        starts = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=starts[1:])
        return cls(np.concatenate(rows) if rows else empty, starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, number: int) -> npt.NDArray[Any]:
        """The values of one row."""
        return self.values[self.starts[number] : self.starts[number + 1]]

    def __getitem__(self, rows: npt.NDArray[Any]) -> Ragged:
        """These rows, in the order given."""
        places, starts = self.places(rows)
        return Ragged(self.values[places], starts)

    def places(self, rows: npt.NDArray[Any]) -> tuple[Places, Places]:
        """Where the values of these rows are, and where each of the rows starts among them."""
        lengths = np.diff(self.starts)[rows]
        starts = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=starts[1:])
        places = np.repeat(self.starts[:-1][rows] - starts[:-1], lengths)
        return places + np.arange(starts[-1]), starts


@dataclass(frozen=True)
class TokenVectors:
    """The token vectors of some texts, and the word pieces that they are of.

    The pieces of queries go with their vectors, one by one. Those of documents are the different
    ones of each text, ascending: several of its vectors may have become one.
    """

    vectors: Ragged
    pieces: Ragged

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: npt.NDArray[Any]) -> TokenVectors:
        """Those of these texts, in the order given."""
        return TokenVectors(self.vectors[rows], self.pieces[rows])


def with_different_pieces(found: TokenVectors) -> TokenVectors:
    """The token vectors of documents, of which each has its different word pieces, ascending."""
    lengths = np.diff(found.pieces.starts)
    texts = np.repeat(np.arange(len(found), dtype=np.int64), lengths)
    different = np.unique(texts << 32 | found.pieces.values.astype(np.int64))
    starts = np.searchsorted(different >> 32, np.arange(len(found) + 1)).astype(np.int64)
    pieces = (different & 0xFFFF_FFFF).astype(np.int32)
    return TokenVectors(found.vectors, Ragged(pieces, starts))


@dataclass(frozen=True)
class Both:
    """What one pass of an encoder gives of some texts: a vector of each, and its token vectors."""

    vectors: npt.NDArray[np.float32]
    tokens: TokenVectors

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: npt.NDArray[Any]) -> Both:
        """Those of these texts, in the order given."""
        return Both(self.vectors[rows], self.tokens[rows])

    @classmethod
    def joined(cls, parts: Sequence[Both]) -> Both:
        """Those of several batches as those of one."""
        vectors = np.concatenate([one.vectors for one in parts])
        return cls(vectors, joined([one.tokens for one in parts]))


def joined(parts: Sequence[TokenVectors]) -> TokenVectors:
    """The token vectors of several batches as those of one."""
    return TokenVectors(
        _joined([one.vectors for one in parts]), _joined([one.pieces for one in parts])
    )


def _joined(parts: Sequence[Ragged]) -> Ragged:
    lengths = np.concatenate([np.diff(one.starts) for one in parts])
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return Ragged(np.concatenate([one.values for one in parts]), starts)
