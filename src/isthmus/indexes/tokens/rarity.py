"""How much each word piece of a query counts: by how few texts of the whole index hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from isthmus.indexes.manifest import TokensField
from isthmus.indexes.ragged import Places, Ragged, TokenVectors
from isthmus.indexes.tokens.field import TokensSearch

if TYPE_CHECKING:
    from isthmus.indexes.segment import Segment


@dataclass(frozen=True)
class Rarity:
    """How many living texts of a field there are, and how many of them hold each word piece."""

    texts: int
    holding: Places

    @classmethod
    def of(cls, field: str, segments: Sequence[Segment]) -> Rarity:
        """That of a field over all segments."""
        texts, counts = 0, [np.zeros(0, dtype=np.int64)]
        for segment in segments:
            search = segment.search(field)
            assert isinstance(search, TokensSearch)
            counts.append(search.holding)
            texts += len(search.pieces)
            if (living := segment.spread(field, None)) is not None:
                gone = np.flatnonzero(~living)
                texts -= len(gone)
                counts.append(-np.bincount(search.pieces[gone].values))
        holding = np.zeros(max(map(len, counts)), dtype=np.int64)
        for one in counts:
            holding[: len(one)] += one
        return cls(texts, holding)

    def weights(self, pieces: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """The weight of each word piece: the logarithm of one text in how many holds it."""
        held = np.zeros(len(pieces))
        known = pieces < len(self.holding)
        held[known] = self.holding[pieces[known]]
        return np.log((self.texts + 1) / (held + 0.5)).astype(np.float32)


def weighed(queries: TokenVectors, about: TokensField, rarity: Rarity) -> TokenVectors:
    """The token vectors of queries with the weight of each in place of its word piece.

    Weights by rarity add up to 1, so that a score is a mean cosine whatever the query's length.
    """
    pieces = queries.pieces
    if about.weights == "alike":
        return TokenVectors(
            queries.vectors, Ragged(np.ones(len(pieces.values), dtype=np.float32), pieces.starts)
        )
    weights = rarity.weights(pieces.values)
    lengths = np.diff(pieces.starts)
    sums = np.add.reduceat(np.append(weights, 0), pieces.starts[:-1]) * (lengths > 0)
    weights /= np.repeat(np.maximum(sums, np.finfo(np.float32).tiny), lengths)
    return TokenVectors(queries.vectors, Ragged(weights, pieces.starts))
