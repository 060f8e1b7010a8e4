"""What a head says about the vocabulary, before it is multiplied out.

[tokens, vocabulary] logits are by far the largest tensors of masked-language modelling: with 30,522
terms, each token has 80 times more logits than a small encoder has states. A loss needs them for a
moment only, so it makes them for some tokens at a time, and takes their gradients while they are
there (as torch 2.13's linear_cross_entropy does; older versions have none).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor

from isthmus.nn.kernels import has_triton

# Logits held at once: 256 MB of float32. A GPU has more room, and is kept waiting by small pieces.
_AT_ONCE = {"cpu": 1 << 26, "cuda": 1 << 29}
# Matrix products of other widths run on a GPU's slower kernels.
_MULTIPLE = {"cpu": 1, "cuda": 8}
IGNORED = -100  # the target of a token without weight, as torch has it


class Prediction(NamedTuple):
    """features · matrixᵀ + bias, for tokens [..., width] and a vocabulary [terms, width]."""

    features: Tensor
    matrix: Tensor
    bias: Tensor | None

    @property
    def dtype(self) -> torch.dtype:
        """What it is multiplied in: that of the features, or of autocast."""
        device = self.features.device.type
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        return self.features.dtype

    def logits(self) -> Tensor:
        """Multiplied out, [..., terms]."""
        dtype = self.dtype  # first: what is aligned is copied
        bias = None if self.bias is None else self.bias.to(dtype)
        matrix, bias = aligned(self.matrix.to(dtype), bias)
        return functional.linear(self.features, matrix, bias)[..., : len(self.matrix)]

    def most_likely(self) -> Tensor:
        """The term of the largest logit, for tokens [tokens, width]; some at a time."""
        step = rows_at_once(len(self.matrix), self.features.device)
        parts = torch.split(self.features, step)
        found = [self._replace(features=part).logits().argmax(-1) for part in parts]
        return torch.cat(found)

    def cross_entropy(self, targets: Tensor) -> Tensor:
        """Σ -log softmax(logits)[target] in float32, without holding all logits; 0 of no tokens.

        A token whose target is -100 adds nothing, and gets no gradient.
        """
        return self._summed(_Targets(targets[:, None]))

    def bag_cross_entropy(self, bags: Tensor, sizes: Tensor) -> Tensor:
        """Σ of the mean of -log softmax(logits) over a token's set of terms, in the same way.

        bags: [tokens, terms], True for the terms of a set; sizes: how many these are. A token whose
        set is empty adds nothing, and gets no gradient.
        """
        return self._summed(_Bags(bags, sizes[:, None]))

    def _summed(self, goal: _Goal) -> Tensor:
        train = torch.is_grad_enabled()
        total: Tensor = _CrossEntropy.apply(*self, goal, self.dtype, train)  # type: ignore[no-untyped-call]
        return total


class _Targets(NamedTuple):
    """One term for each token, [tokens, 1]; -100 for none."""

    terms: Tensor

    def some(self, tokens: slice) -> _Targets:
        return _Targets(self.terms[tokens])

    def counts(self) -> Tensor:
        """Which tokens have a goal, [tokens, 1]."""
        return self.terms != IGNORED

    def find(
        self, logits: Tensor, exact: torch.dtype, train: bool, kernels: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The losses, and in training their slopes; by a kernel 0 in tokens that do not count."""
        find = _replace_by_slopes if kernels else _find_slopes
        return find(logits, self.terms, exact, train)


class _Bags(NamedTuple):
    """A set of terms for each token, [tokens, terms], and its size, [tokens, 1]; 0 for none."""

    bags: Tensor
    sizes: Tensor

    def some(self, tokens: slice) -> _Bags:
        return _Bags(self.bags[tokens], self.sizes[tokens])

    def counts(self) -> Tensor:
        """Which tokens have a goal, [tokens, 1]."""
        return self.sizes > 0

    def find(
        self, logits: Tensor, exact: torch.dtype, train: bool, kernels: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The losses, and in training their slopes; by a kernel 0 in tokens that do not count."""
        find = _replace_by_bag_slopes if kernels else _find_bag_slopes
        return find(logits, self.bags, self.sizes, exact, train)


_Goal = _Targets | _Bags


def aligned(matrix: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The same with terms that are never predicted, up to a number that is multiplied fast."""
    missing = -len(matrix) % _MULTIPLE.get(matrix.device.type, 1)
    if not missing:
        return matrix, bias
    offsets = _never(len(matrix), missing, matrix, bias)
    return functional.pad(matrix, (0, 0, 0, missing)), offsets


def _never(terms: int, missing: int, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """The bias, and of those that are missing one that makes them impossible."""
    known = matrix.new_zeros(terms) if bias is None else bias
    return functional.pad(known, (0, missing), value=-torch.inf)


def _rounded(
    matrix: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Aligned in another type; the matrix is written once, where the other way writes it twice."""
    offsets = None if bias is None else bias.to(dtype)
    missing = -len(matrix) % _MULTIPLE.get(matrix.device.type, 1)
    if not missing or matrix.dtype == dtype:
        return aligned(matrix.to(dtype), offsets)
    wide = matrix.new_empty(len(matrix) + missing, matrix.shape[1], dtype=dtype)
    wide[: len(matrix)] = matrix
    wide[len(matrix) :] = 0
    return wide, _never(len(matrix), missing, wide, offsets)


def rows_at_once(logits: int, device: torch.device) -> int:
    """How many rows of so many logits may be held, at least one."""
    return max(1, _AT_ONCE.get(device.type, _AT_ONCE["cpu"]) // max(1, logits))


class _CrossEntropy(torch.autograd.Function):
    """The gradients are those of the sum; what comes back from above is one number."""

    @staticmethod
    def forward(
        context: Any,
        features: Tensor,
        matrix: Tensor,
        bias: Tensor | None,
        goal: _Goal,
        dtype: torch.dtype,
        train: bool,
    ) -> Tensor:
        # At least float32, also where matrix products are computed in less.
        exact = torch.promote_types(features.dtype, torch.float32)
        wide, offsets = _rounded(matrix, bias, dtype)
        wanted = [train and needed for needed in context.needs_input_grad[:3]]
        kernels = exact == torch.float32 and len(features) > 0 and _has_kernels(wide)
        # What a product overwrites need not be zero before.
        made = features.new_empty if kernels else features.new_zeros
        total = features.new_zeros((), dtype=exact)
        for_features = made(features.shape, dtype=exact) if wanted[0] else None
        for_matrix = made(wide.shape, dtype=exact) if wanted[1] else None
        for_bias = features.new_zeros(len(wide), dtype=exact) if wanted[2] else None
        step = rows_at_once(len(wide), features.device)
        with torch.autocast(features.device.type, enabled=False):
            for start in range(0, len(features), step):
                chosen = goal.some(slice(start, start + step))
                counts = chosen.counts()
                # At 0, what does not count gives the matrix nothing. All of it is done in numbers
                # of the width or fewer: logits are many times more.
                part = torch.where(counts, features[start : start + step].to(dtype), 0)
                losses, slopes = chosen.find(
                    functional.linear(part, wide, offsets), exact, any(wanted), kernels
                )
                total += losses.sum()
                if slopes is None:
                    continue
                if for_features is not None:
                    own = for_features[start : start + step]
                    if kernels:
                        _multiply(slopes, wide, own)
                    else:
                        own.copy_(torch.where(counts, slopes @ wide, 0))
                if for_matrix is not None:
                    if kernels:
                        _multiply(slopes.T, part, for_matrix, add=start > 0)
                    else:
                        for_matrix += slopes.T @ part
                if for_bias is not None:
                    for_bias += (counts.T.to(dtype) @ slopes)[0]  # faster than a sum
                del slopes  # before the next ones are made
        context.rows = len(matrix)
        context.types = [
            tensor.dtype if tensor is not None else None for tensor in (features, matrix, bias)
        ]
        context.gradients = for_features, for_matrix, for_bias
        return total

    @staticmethod
    def backward(context: Any, *above: Tensor) -> Any:
        for_features, for_matrix, for_bias = context.gradients
        gradients = (
            for_features,
            None if for_matrix is None else for_matrix[: context.rows],
            None if for_bias is None else for_bias[: context.rows],
        )
        scaled = (
            None if gradient is None else _scaled(gradient, above[0], dtype)
            for gradient, dtype in zip(gradients, context.types, strict=True)
        )
        return (*scaled, None, None, None)


def _scaled(gradient: Tensor, above: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded as it is written, where it is rounded."""
    return torch.mul(gradient, above, out=gradient.new_empty(gradient.shape, dtype=dtype))


def _find_slopes(
    logits: Tensor, targets: Tensor, exact: torch.dtype, train: bool
) -> tuple[Tensor, Tensor | None]:
    """-log softmax(logits)[target], 0 where there is none; in training also its slopes."""
    dtype, chosen = logits.dtype, targets.clamp(min=0)
    logs = torch.log_softmax(logits, 1, dtype=exact)
    del logits
    found = logs.gather(1, chosen)
    losses = torch.where(targets != IGNORED, -found, 0)
    if not train:
        return losses, None
    # d/dlogit = softmax - 1 at the target, rounded once.
    slopes = torch.empty_like(logs, dtype=dtype)
    torch.exp(logs, out=slopes)
    slopes.scatter_(1, chosen, found.expm1().to(dtype))
    return losses, slopes


def _replace_by_slopes(
    logits: Tensor, targets: Tensor, exact: torch.dtype, train: bool
) -> tuple[Tensor, Tensor | None]:
    """The same in place of the logits, and slopes that are 0 where there is no target."""
    from isthmus.nn.prediction_kernels import replace_by_slopes

    losses = replace_by_slopes(logits, targets[:, 0], write=train)
    return losses, logits if train else None


def _find_bag_slopes(
    logits: Tensor, bags: Tensor, sizes: Tensor, exact: torch.dtype, train: bool
) -> tuple[Tensor, Tensor | None]:
    """The mean of -log softmax(logits) in the bag, 0 of none; in training also its slopes."""
    dtype, share = logits.dtype, 1 / sizes.clamp(min=1).to(exact)
    logs = torch.log_softmax(logits, 1, dtype=exact)
    del logits
    known = logs[:, : bags.shape[1]]  # logits may be aligned
    losses = -torch.where(bags, known, 0).sum(1, keepdim=True) * share
    if not train:
        return losses, None
    # d/dlogit = softmax - 1 / size in the bag, rounded once.
    torch.exp(logs, out=logs)
    known -= bags * share
    return losses, logs.to(dtype)


def _replace_by_bag_slopes(
    logits: Tensor, bags: Tensor, sizes: Tensor, exact: torch.dtype, train: bool
) -> tuple[Tensor, Tensor | None]:
    """The same in place of the logits, and slopes that are 0 where the bag is empty."""
    from isthmus.nn.prediction_kernels import replace_by_bag_slopes

    losses = replace_by_bag_slopes(logits, bags, sizes[:, 0], write=train)
    return losses, logits if train else None


def _multiply(left: Tensor, right: Tensor, into: Tensor, add: bool = False) -> None:
    """The product in float32, not rounded before; instead of what is there or added to it."""
    if add:
        torch.addmm(into, left, right, out_dtype=into.dtype, out=into)
    else:
        torch.mm(left, right, out_dtype=into.dtype, out=into)


def _has_kernels(matrix: Tensor) -> bool:
    return (
        matrix.device.type == "cuda"
        and matrix.dtype in (torch.bfloat16, torch.float16)
        and has_triton(matrix.device.index)
    )
