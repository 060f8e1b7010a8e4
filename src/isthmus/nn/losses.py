"""Cross-entropy against the vocabulary, without holding all logits.

The loss makes logits for some tokens at a time, and their gradients while the logits are there (as
torch 2.13's linear_cross_entropy does; older versions have none). On a GPU in 16 bits, a kernel
writes the gradients in the place of the logits. docs/decisions/cross-entropy-kernel.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor

from isthmus.nn.kernels.available import has_half_kernels

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


class Targets(NamedTuple):
    """One term for each token, [tokens, 1]; -100 for none."""

    terms: Tensor

    def some(self, tokens: slice) -> Targets:
        """The targets of some tokens."""
        return Targets(self.terms[tokens])

    def counts(self) -> Tensor:
        """Which tokens have a target, [tokens, 1]."""
        return self.terms != IGNORED

    def losses(
        self, logits: Tensor, exact: torch.dtype, train: bool, kernels: bool
    ) -> tuple[Tensor, Tensor | None]:
        """-log softmax(logits)[target], 0 without one; in training, the gradients of the logits.

        A kernel gives tokens without a target a gradient of 0, plain torch any.
        """
        if kernels:
            from isthmus.nn.kernels.cross_entropy_triton import replace_by_gradients

            losses = replace_by_gradients(logits, self.terms[:, 0], write=train)
            return losses, logits if train else None
        return _token_losses(logits, self.terms, exact, train)


class Bags(NamedTuple):
    """A set of terms for each token, [tokens, terms], and its size, [tokens, 1]; 0 for none."""

    bags: Tensor
    sizes: Tensor

    def some(self, tokens: slice) -> Bags:
        """The sets of some tokens."""
        return Bags(self.bags[tokens], self.sizes[tokens])

    def counts(self) -> Tensor:
        """Which tokens have a set that is not empty, [tokens, 1]."""
        return self.sizes > 0

    def losses(
        self, logits: Tensor, exact: torch.dtype, train: bool, kernels: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The mean of -log softmax(logits) over a set, and in training the logits' gradients.

        A kernel gives tokens with an empty set a gradient of 0, plain torch any.
        """
        if kernels:
            from isthmus.nn.kernels.cross_entropy_triton import replace_by_bag_gradients

            losses = replace_by_bag_gradients(logits, self.bags, self.sizes[:, 0], write=train)
            return losses, logits if train else None
        return _bag_losses(logits, self.bags, self.sizes, exact, train)


def summed_cross_entropy(
    features: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    goal: Targets | Bags,
    dtype: torch.dtype,
) -> Tensor:
    """The sum of the losses of all tokens, in float32; products are computed in `dtype`."""
    train = torch.is_grad_enabled()
    total: Tensor = _CrossEntropy.apply(features, matrix, bias, goal, dtype, train)  # type: ignore[no-untyped-call]
    return total


class _CrossEntropy(torch.autograd.Function):
    """The forward pass computes the gradients of the sum, which the backward pass scales."""

    @staticmethod
    def forward(
        context: Any,
        features: Tensor,
        matrix: Tensor,
        bias: Tensor | None,
        goal: Targets | Bags,
        dtype: torch.dtype,
        train: bool,
    ) -> Tensor:
        # At least float32, also where matrix products are computed in less.
        exact = torch.promote_types(features.dtype, torch.float32)
        wide, offsets = cast_and_aligned(matrix, bias, dtype)
        wanted = [train and needed for needed in context.needs_input_grad[:3]]
        kernels = exact == torch.float32 and len(features) > 0 and has_half_kernels(wide)
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
                # At 0, a token that does not count adds nothing to the matrix's gradient. Masking
                # features is cheaper than masking logits, which are many times more.
                part = torch.where(counts, features[start : start + step].to(dtype), 0)
                losses, gradients = chosen.losses(
                    functional.linear(part, wide, offsets), exact, any(wanted), kernels
                )
                total += losses.sum()
                if gradients is None:
                    continue
                if for_features is not None:
                    own = for_features[start : start + step]
                    if kernels:
                        multiply(gradients, wide, own)
                    else:
                        own.copy_(torch.where(counts, gradients @ wide, 0))
                if for_matrix is not None:
                    if kernels:
                        multiply(gradients.T, part, for_matrix, add=start > 0)
                    else:
                        for_matrix += gradients.T @ part
                if for_bias is not None:
                    for_bias += (counts.T.to(dtype) @ gradients)[0]  # faster than a sum
                del gradients  # before the next ones are made
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
    """`gradient * above`, written directly in `dtype`."""
    return torch.mul(gradient, above, out=gradient.new_empty(gradient.shape, dtype=dtype))


def _token_losses(
    logits: Tensor, targets: Tensor, exact: torch.dtype, train: bool
) -> tuple[Tensor, Tensor | None]:
    dtype, chosen = logits.dtype, targets.clamp(min=0)
    logs = torch.log_softmax(logits, 1, dtype=exact)
    del logits
    found = logs.gather(1, chosen)
    losses = torch.where(targets != IGNORED, -found, 0)
    if not train:
        return losses, None
    # d/dlogit = softmax - 1 at the target, rounded once.
    gradients = torch.empty_like(logs, dtype=dtype)
    torch.exp(logs, out=gradients)
    gradients.scatter_(1, chosen, found.expm1().to(dtype))
    return losses, gradients


def _bag_losses(
    logits: Tensor, bags: Tensor, sizes: Tensor, exact: torch.dtype, train: bool
) -> tuple[Tensor, Tensor | None]:
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


def multiply(left: Tensor, right: Tensor, into: Tensor, add: bool = False) -> None:
    """Writes the product in float32, not rounded before, or adds it to `into`."""
    if add:
        torch.addmm(into, left, right, out_dtype=into.dtype, out=into)
    else:
        torch.mm(left, right, out_dtype=into.dtype, out=into)
