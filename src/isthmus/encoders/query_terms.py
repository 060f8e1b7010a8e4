"""A learned weight per term: what a query is made of when no transformer reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from isthmus.errors import InputError, MismatchError

QUERY_TERMS_FILE = "query_terms.safetensors"
# Adam moves a parameter by about the learning rate, and a rate for transformers (2e-5) would never
# move a weight of 1. Fifty times as fast is 1e-3, with which such weights are trained elsewhere.
_PACE = 50.0
_NAME = "terms"


class QueryTerms(nn.Module):
    """softplus(50 θ) per term, 1 at first: never negative, and never so low that it cannot rise."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        start = math.log(math.expm1(1.0)) / _PACE
        self.theta = nn.Parameter(torch.full((vocabulary,), start, dtype=torch.float32))

    def weights(self) -> Tensor:
        """The weight of every term, [vocabulary] in float32."""
        # The pace is the step's alone: in the gradient, it would dominate the norm that gradients
        # are clipped by.
        return functional.softplus(self.theta + (_PACE - 1) * self.theta.detach())

    def forward(self, ids: Tensor, inside: Tensor) -> Tensor:
        """[rows, vocabulary]: the weight of each distinct term at the positions inside."""
        weights = self.weights()
        present = weights.new_zeros(len(ids), len(weights))
        # The largest, not the last: padding may share its id with a term.
        return present.scatter_reduce(1, ids, inside.to(weights.dtype), "amax") * weights

    def matrix(self, rows: Sequence[npt.NDArray[np.integer]]) -> csr_matrix:
        """The same for rows of distinct terms in ascending order, without their zeros."""
        with torch.no_grad():
            weights = self.weights().cpu().numpy()
        terms = np.concatenate([*rows, np.empty(0, dtype=np.int32)]).astype(np.int32)
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int32)
        return csr_matrix((weights[terms], terms, starts), shape=(len(rows), len(weights)))

    def save(self, folder: Path) -> None:
        """Writes θ beside a model."""
        save_file({_NAME: self.theta.detach().contiguous()}, folder / QUERY_TERMS_FILE)

    def restore(self, folder: Path) -> None:
        """Loads what `save` wrote."""
        file = folder / QUERY_TERMS_FILE
        try:
            theta = load_file(file).get(_NAME, torch.empty(0))
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"the weights of query terms cannot be read: {error}",
                where=str(file),
                allowed="the file that was saved beside an encoder with query=terms",
                remedy="copy the whole folder of the model again",
            ) from error
        if theta.shape != self.theta.shape:
            raise MismatchError(
                f"there are weights for {len(theta):,} query terms, the model has "
                f"{len(self.theta):,}",
                where=str(file),
                allowed="one weight per term of the model's vocabulary",
                remedy="take both from one folder",
            )
        with torch.no_grad():
            self.theta.copy_(theta)
