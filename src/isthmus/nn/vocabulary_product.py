"""Products with the vocabulary's matrix: a few rows at a time, in widths that a GPU is fast at."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

# Logits held at once: 256 MB of float32. A GPU has more memory, and small pieces leave it idle.
AT_ONCE = {"cpu": 1 << 26, "cuda": 1 << 29}
# Matrix products of other widths run on a GPU's slower kernels.
MULTIPLE = {"cpu": 1, "cuda": 8}
IGNORED = -100  # the target of a token without a loss, as in torch


def rows_at_once(logits: int, device: torch.device) -> int:
    """How many rows of so many logits may be held, at least one."""
    return max(1, AT_ONCE.get(device.type, AT_ONCE["cpu"]) // max(1, logits))


def aligned(matrix: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Matrix and bias, padded to a fast number of terms; the terms added are never predicted."""
    missing = -len(matrix) % MULTIPLE.get(matrix.device.type, 1)
    if not missing:
        return matrix, bias
    offsets = _padded_bias(missing, matrix, bias)
    return functional.pad(matrix, (0, 0, 0, missing)), offsets


def cast_and_aligned(
    matrix: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """`aligned` matrix and bias in another type, the matrix written once instead of twice."""
    offsets = None if bias is None else bias.to(dtype)
    missing = -len(matrix) % MULTIPLE.get(matrix.device.type, 1)
    if not missing or matrix.dtype == dtype:
        return aligned(matrix.to(dtype), offsets)
    wide = matrix.new_empty(len(matrix) + missing, matrix.shape[1], dtype=dtype)
    wide[: len(matrix)] = matrix
    wide[len(matrix) :] = 0
    return wide, _padded_bias(missing, wide[: len(matrix)], offsets)


def _padded_bias(missing: int, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """The bias, followed by -∞ for the missing terms, which makes them impossible."""
    known = matrix.new_zeros(len(matrix)) if bias is None else bias
    return functional.pad(known, (0, missing), value=-torch.inf)
