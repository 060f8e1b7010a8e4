"""A head for encoders that have none: a linear map from vectors to the tokens of their texts.

Ridge regression: for the vectors X of some documents and their bags of words Y, both centred, it is
the W that minimises |Y - X W|² + λ |W|². One eigenvalue decomposition serves every λ; documents
that W has not seen choose one, others again say how well it names the tokens of a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix, vstack
from torch import Tensor

from isthmus.encoders.dense import DenseEncoder
from isthmus.errors import InputError
from isthmus.indexes.documents import blocks
from isthmus.inspection.vocabulary_view import read_sets
from isthmus.pretraining.probes.coverage import covered
from isthmus.records import Document

Floats = npt.NDArray[np.float32]
K = 64  # tokens that count in what is said of the fit, as in the probe `coverage`
_PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # λ as multiples of the mean eigenvalue
_PARTS = (0.8, 0.9)  # where those end that W is fitted to, and those that choose λ
FEWEST = 20  # documents; of fewer, none would be left to choose λ, and to try it on
_LEAST = 1e-12  # a λ that divides by more than nothing
_AT_ONCE = 64  # texts


@dataclass(frozen=True)
class Fit:
    """How well a fitted head does on documents that it has not seen.

    Shares of a text's tokens: `coverage` among the first 64 that it names, `constant` among the 64
    that most documents hold.
    """

    documents: int
    held_out: int
    coverage: float
    constant: float

    def __str__(self) -> str:
        return (
            f"a linear head fitted to {self.documents:,} documents: of the tokens of "
            f"{self.held_out:,} others it names {self.coverage:.1%} among its first {K} (the {K} "
            f"most frequent tokens: {self.constant:.1%})"
        )


class FittedHead:
    """Weights of tokens that are linear in a vector; of tokens that were not seen, none."""

    fit: Fit

    def __init__(self, matrix: Floats, origin: Floats, base: Floats, columns: Tensor) -> None:
        """`columns` is True for the tokens of the vocabulary that have a column in the matrix."""
        self.matrix, self.origin, self.base, self.columns = matrix, origin, base, columns

    def weights(self, vectors: Floats) -> Tensor:
        """The weights [texts, vocabulary]: about the share of such texts that hold a token."""
        named = self.base + (vectors - self.origin) @ self.matrix
        found = torch.full((len(vectors), len(self.columns)), -torch.inf)
        found[:, self.columns] = torch.from_numpy(named).float()
        return found

    def usual(self) -> Tensor:
        """The share of all texts that hold a token, [vocabulary]."""
        return self.weights(self.origin[None])[0]


def fit_head(
    encoder: DenseEncoder, documents: Sequence[Document], vectors: Floats | None = None
) -> FittedHead:
    """The head of an encoder's vectors, fitted to most of these documents and tried on others.

    `vectors` are those of the documents, where they are known.
    """
    if len(documents) < FEWEST:
        raise InputError(
            f"--corpus: {len(documents)} documents are too few to fit a head to",
            "give a larger corpus, or measure coverage on fewer --documents of it",
        )
    texts = [document.contents(encoder.settings.titles) for document in documents]
    if vectors is None:
        vectors = encoder.encode_documents([Document("", text) for text in texts])
    sets = (read_sets(encoder, block) for block in blocks(texts, _AT_ONCE))
    bags = vstack([csr_matrix(one.numpy()) for one in sets])
    first, second = (int(len(texts) * share) for share in _PARTS)
    choosing, judging = slice(first, second), slice(second, len(texts))

    def reached(head: FittedHead, part: slice) -> float:
        sets = torch.from_numpy(bags[part].toarray())
        return float(covered(head.weights(vectors[part]), sets, K)[:, -1].mean())

    heads = _heads(vectors[:first], bags[:first])
    same = next(heads)
    best = max(heads, key=lambda head: reached(head, choosing))
    best.fit = Fit(first, len(texts) - second, reached(best, judging), reached(same, judging))
    return best


def _heads(vectors: Floats, bags: Any) -> Iterator[FittedHead]:
    """First the head that names the most frequent tokens whatever comes, then one for each λ."""
    columns = torch.from_numpy(bags.getnnz(0) > 0)
    seen = csr_matrix(bags[:, columns.numpy()], dtype=np.float32)
    origin, base = vectors.mean(0), np.asarray(seen.mean(0), dtype=np.float32).ravel()
    centred = vectors - origin
    values, rotation = np.linalg.eigh((centred.T @ centred).astype(np.float64))
    rotated = rotation.T @ (seen.T @ centred).T  # Y need not be centred: X is
    yield FittedHead(np.zeros_like(rotated), origin, base, columns)
    for factor in _PENALTIES:
        penalty = factor * max(float(values.mean()), _LEAST)
        matrix = rotation @ (rotated / (values + penalty)[:, None])
        yield FittedHead(matrix.astype(np.float32), origin, base, columns)
