"""Lucene's formula of BM25, rounded as bm25s rounds it: its scores to the last bit.

Kamphuis et al., Which BM25 do you mean? (ECIR 2020), table 1.
"""

from __future__ import annotations

from math import log
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from isthmus.indexes.manifest import Bm25Settings

Scores = npt.NDArray[np.float32]


class TermScore(NamedTuple):
    """What one occurrence of a term in the query adds to the BM25 score of a document."""

    term: str
    times: int  # that the query asks for it
    score: float
    frequency: int  # in the document
    documents: int  # that hold the term


def inverse_frequency(containing: int, documents: int) -> np.float32:
    """The weight of a term that so many of the documents contain."""
    return np.float32(log(1 + (documents - containing + 0.5) / (containing + 0.5)))


def norms(
    settings: Bm25Settings, lengths: npt.NDArray[np.int32], average: float
) -> npt.NDArray[np.float64]:
    """What the length of each document adds to the frequency of any term in the formula."""
    k1, b = settings.k1, settings.b
    return np.asarray(k1 * ((1 - b) + b * lengths / average), dtype=np.float64)


def posting_scores(
    weight: np.float32, frequencies: npt.NDArray[Any], norms: npt.NDArray[np.float64]
) -> Scores:
    """The score of each posting, from the weight of its term and the norm of its document."""
    counts = frequencies.astype(np.float32)
    scores: Scores = (weight * (counts / (counts + norms))).astype(np.float32)
    return scores
