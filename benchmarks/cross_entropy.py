"""The cross-entropy of a masked-LM head, trained and evaluated, in several ways in turns.

plain: as transformers writes it, all logits at once, in float32. torch: its own
linear_cross_entropy, in pieces (2.13 and later). liger: Liger-Kernel's fused one, where it is
installed. pieces: isthmus without kernels. kernels: isthmus with them.
docs/decisions/cross-entropy-kernel.md says what was expected of it.

    python benchmarks/cross_entropy.py [--tokens 9830 2048] [--terms 30522 250002]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import torch
import torch.nn.functional as functional
from in_turns import DEVICE, ON_GPU, Works, in_turns, print_errors, print_ways
from torch import Tensor

from isthmus.nn.kernels import available as switch
from isthmus.nn.kernels import cross_entropy
from isthmus.nn.precision import native_bf16
from isthmus.nn.prediction import Prediction
from isthmus.nn.vocabulary_product import IGNORED, aligned, rows_at_once

DTYPE = torch.bfloat16 if native_bf16() else torch.float32
Way = Callable[[Prediction, Tensor], Tensor]


class Case(NamedTuple):
    """What a head says of some tokens, and what they are; every fiftieth has no target."""

    given: Prediction
    targets: Tensor

    def to(self, dtype: torch.dtype) -> Case:
        """The same numbers in another type, to be trained."""
        parts = (
            part.detach().to(dtype).requires_grad_() for part in self.given if part is not None
        )
        return Case(Prediction(*parts), self.targets)


def main() -> None:
    """Prints milliseconds, peak memory and both as ratios against the plain way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--terms", type=int, nargs="+", default=[30_522, 250_002][: 1 + ON_GPU])
    parser.add_argument("--tokens", type=int, nargs="+", default=[9830, 2048] if ON_GPU else [512])
    parser.add_argument("--width", type=int, default=768 if ON_GPU else 384)
    parser.add_argument("--rounds", type=int, default=10 if ON_GPU else 3, help="for the median")
    options = parser.parse_args()
    if len(options.terms) != len(options.tokens):
        parser.error("--terms and --tokens want one number for each case")
    print(
        f"{str(DTYPE).removeprefix('torch.')}, width {options.width}, "
        f"{torch.cuda.get_device_name() if ON_GPU else f'{torch.get_num_threads()} threads'}, "
        f"torch {torch.__version__}"
    )
    ways: dict[str, Way] = {
        "plain": _plain,
        **({"torch": _torch} if hasattr(functional, "linear_cross_entropy") else {}),
        **({"liger": _liger} if ON_GPU and find_spec("liger_kernel") else {}),
        "pieces": partial(_isthmus, False),
        **({"kernels": partial(_isthmus, True)} if _kernels_run() else {}),
    }
    _print_errors(ways)
    for tokens, terms in zip(options.tokens, options.terms, strict=True):
        case = _case(tokens, terms, options.width)
        _print_ways(ways, case, options.rounds)
        if "kernels" in ways:
            _print_kernel(case, options.rounds)


def _kernels_run() -> bool:
    return switch.has_half_kernels(torch.ones(1, 1, device=DEVICE, dtype=torch.bfloat16))


def _plain(given: Prediction, targets: Tensor) -> Tensor:
    logits = functional.linear(*given)
    return functional.cross_entropy(logits.float(), targets, reduction="sum")


def _rounded(given: Prediction) -> list[Tensor]:
    """What autocast makes of it, for those that do not heed it."""
    return [part.to(DTYPE) for part in given if part is not None]


def _torch(given: Prediction, targets: Tensor) -> Tensor:
    features, matrix, bias = _rounded(given)
    options = torch.nn.LinearCrossEntropyOptions()  # type: ignore[attr-defined, unused-ignore]
    return functional.linear_cross_entropy(  # type: ignore[attr-defined, no-any-return, unused-ignore]
        features, matrix, targets, linear_bias=bias, reduction="sum", options=options
    )


def _liger(given: Prediction, targets: Tensor) -> Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    features, matrix, bias = _rounded(given)
    loss: Tensor = LigerFusedLinearCrossEntropyLoss(reduction="sum")(
        matrix, features, targets, bias
    )
    return loss


def _isthmus(kernels: bool, given: Prediction, targets: Tensor) -> Tensor:
    switch.KERNELS = kernels
    return given.cross_entropy(targets)


def _case(tokens: int, terms: int, width: int) -> Case:
    """Random numbers; logits are standard normal."""
    generator = torch.Generator(DEVICE).manual_seed(tokens)
    draw = partial(torch.randn, generator=generator, device=DEVICE)
    targets = torch.randint(terms, (tokens,), generator=generator, device=DEVICE)
    targets[::50] = IGNORED
    given = Prediction(draw(tokens, width), draw(terms, width) / width**0.5, draw(terms) / 10)
    return Case(given, targets).to(torch.float32)


def _train(way: Way, case: Case) -> tuple[Tensor, ...]:
    with torch.autocast(DEVICE, DTYPE, enabled=native_bf16()):
        loss = way(case.given, case.targets)
    return torch.autograd.grad(loss / 7, case.given)


def _evaluate(way: Way, case: Case) -> Tensor:
    with torch.autocast(DEVICE, DTYPE, enabled=native_bf16()), torch.no_grad():
        return way(case.given, case.targets)


def _print_errors(ways: dict[str, Way]) -> None:
    """|found - exact| / |exact| of the loss and its gradients."""
    case = _case(500, 1000, 256)
    case = case.to(DTYPE).to(torch.float32)  # what goes in is rounded once, by everyone
    exact = case.to(torch.float64)
    logits = functional.linear(*exact.given)
    expected = functional.cross_entropy(logits, exact.targets, reduction="sum")
    gradients = torch.autograd.grad(expected / 7, exact.given)
    for name, way in ways.items():
        found = (_evaluate(way, case), *_train(way, case))
        print_errors(
            name, ("loss", "features", "matrix", "bias"), found, (expected.detach(), *gradients)
        )


def _print_ways(ways: dict[str, Way], case: Case, rounds: int) -> None:
    print(f"{len(case.targets):,} tokens, {len(case.given.matrix):,} terms")
    works: Works = {
        (name, kind): partial(work, way, case)
        for name, way in ways.items()
        for kind, work in (("evaluate", _evaluate), ("train", _train))
    }
    print_ways(works, rounds)


def _print_kernel(case: Case, rounds: int) -> None:
    """The kernel alone, as one might choose its tiles, beside plain torch and the products."""
    from isthmus.nn.kernels.cross_entropy_triton import SWEEP, Sweep, replace_by_gradients

    features, matrix, bias = (part.detach() for part in _rounded(case.given))
    wide, offsets = aligned(matrix, bias)
    step = rows_at_once(len(wide), wide.device)
    features, targets = features[:step], case.targets[:step]
    logits = functional.linear(features, wide, offsets)
    for_matrix = torch.zeros(wide.shape, device=DEVICE)
    chosen = targets[:, None]
    works: Works = {
        ("product", "logits"): partial(functional.linear, features, wide, offsets),
        ("product", "for the features"): lambda: logits @ wide,
        ("product", "for the matrix, rounded"): lambda: for_matrix.add_(logits.T @ features),
        ("product", "for the matrix"): partial(
            cross_entropy._multiply, logits.T, features, for_matrix
        ),
        ("gradients", "plain torch"): partial(
            cross_entropy._token_losses, logits, chosen, torch.float32, True
        ),
    }
    # Every round takes the gradients of the last for logits: other numbers, as much work.
    for sweep in (
        SWEEP,
        Sweep(4096, 8),
        Sweep(4096, 16),
        Sweep(8192, 8),
        Sweep(16384, 16),
        Sweep(16384, 32),
    ):
        name = f"{sweep.columns:,} columns, {sweep.warps} warps"
        works["gradients", name] = partial(replace_by_gradients, logits, targets, sweep=sweep)
        works["losses", name] = partial(replace_by_gradients, logits, targets, False, sweep=sweep)
    for (kind, name), found in in_turns(works, rounds).items():
        operations = 2 * len(features) * wide.numel() / found / 1e9
        moved = logits.numel() * logits.element_size() / found / 1e9
        rate = {
            "product": f"{operations:6.0f} TFLOP/s",
            "gradients": f"{2 * moved:6.2f} TB/s, once read and once written",
            "losses": f"{moved:6.2f} TB/s, once read",
        }[kind]
        print(f"{kind:>9}  {name:<24}{found:8.3f} ms  {rate}", flush=True)


if __name__ == "__main__":
    main()
