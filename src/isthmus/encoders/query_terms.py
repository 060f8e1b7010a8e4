"""A learned weight per term: what a query is made of when no transformer reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from isthmus.errors import InputError, MismatchError

QUERY_TERMS_FILE = "query_terms.safetensors"
# Adam moves a parameter by about the learning rate, and a rate for transformers (2e-5) would never
# move a weight of 1. Fifty times as fast is 1e-3, with which such weights are trained elsewhere.
_PACE = 50.0
_NOTHING = 1e-12  # a weight that was 0 where it came from, and which softplus cannot give
_NAME, _NOTE = "terms", "encoder"


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

    def matrix(self, rows: Sequence[list[int]], special: npt.NDArray[np.integer]) -> csr_matrix:
        """The weights of rows of any length as a sparse matrix; special ids have no weight."""
        with torch.no_grad():
            weights = self.weights().cpu().numpy()
        weights[weights < _NOTHING] = 0.0
        kept = [np.setdiff1d(np.array(row, dtype=np.int32), special) for row in rows]
        terms = np.concatenate([*kept, np.empty(0, dtype=np.int32)]).astype(np.int32)
        starts = np.cumsum([0, *map(len, kept)], dtype=np.int32)
        found = csr_matrix((weights[terms], terms, starts), shape=(len(kept), len(weights)))
        found.eliminate_zeros()
        return found

    def take(self, weights: Tensor) -> None:
        """Sets the weight of every term to a given one of 0 or more."""
        theta = weights.double().clamp(min=1e-20).expm1().log() / _PACE
        with torch.no_grad():
            self.theta.copy_(theta.clamp(min=-1.0))

    def save(self, folder: Path, note: str = "") -> None:
        """Writes θ beside a model, with a note on what it belongs to."""
        theta = self.theta.detach().contiguous()
        save_file({_NAME: theta}, folder / QUERY_TERMS_FILE, {_NOTE: note})

    def restore(self, folder: Path) -> None:
        """Loads what `save` wrote."""
        file = folder / QUERY_TERMS_FILE
        theta, _ = _read(file)
        if theta.shape != self.theta.shape:
            raise MismatchError(
                f"{file} has weights for {len(theta):,} query terms, the model has "
                f"{len(self.theta):,}",
                "take both from one folder",
            )
        with torch.no_grad():
            self.theta.copy_(theta)

    @classmethod
    def load(cls, file: Path) -> tuple[QueryTerms, str]:
        """The terms of a file that `save` wrote, and the note; "" where there is none."""
        theta, note = _read(file)
        terms = cls(len(theta))
        with torch.no_grad():
            terms.theta.copy_(theta)
        return terms, note


def _read(file: Path) -> tuple[Tensor, str]:
    try:
        with safe_open(file, "pt") as opened:
            names = opened.keys()
            theta = opened.get_tensor(_NAME) if _NAME in names else torch.empty(0)
            note = (opened.metadata() or {}).get(_NOTE, "")
        if theta.dim() != 1 or not theta.is_floating_point() or not theta.isfinite().all():
            raise ValueError(f"no vector of finite numbers ({theta.dtype}, {theta.shape})")
        return theta, note
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(
            f"the weights of query terms in {file} cannot be read: {error}",
            "copy the complete folder of the model again",
        ) from error
