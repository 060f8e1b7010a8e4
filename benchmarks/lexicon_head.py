"""The largest logit of each text and term, trained and encoded, four ways in turns.

plain: as one writes SPLADE, all logits at once. pieces: some texts at a time, slopes by matrix
products. gathered: the same with slopes that are gathered, isthmus without a GPU. kernels: isthmus
with one. docs/decisions/lexicon-kernels.md says what was expected of it.

    python benchmarks/lexicon_head.py [--texts 128] [--length 144] [--terms 30522 250002]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as functional
from in_turns import DEVICE, ON_GPU, Works, in_turns, print_errors, print_ways
from torch import Tensor

from isthmus.nn import kernels as switch
from isthmus.nn import lexicon
from isthmus.nn.precision import native_bf16
from isthmus.nn.prediction import Prediction, aligned, rows_at_once

Way = Callable[[Prediction, Tensor], Tensor]
# Of all terms, those with a weight: as LexMAE's softmax has them, and as a trained SPLADE does.
_SHARES = (1.0, 0.01)


class Case(NamedTuple):
    """Texts, a vocabulary, and what comes back from the loss."""

    features: Tensor
    matrix: Tensor
    bias: Tensor
    inside: Tensor
    slopes: Tensor

    @property
    def given(self) -> Prediction:
        """What the head says of the texts."""
        return Prediction(self.features, self.matrix, self.bias)

    def to(self, dtype: torch.dtype) -> Case:
        """The same numbers in another type, to be trained."""
        features, matrix, bias = (part.detach().to(dtype).requires_grad_() for part in self[:3])
        return Case(features, matrix, bias, self.inside, self.slopes.to(dtype))


def main() -> None:
    """Prints milliseconds, peak memory and both as ratios against plain torch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=128 if ON_GPU else 8)
    parser.add_argument("--length", type=int, default=144 if ON_GPU else 64, help="tokens a text")
    parser.add_argument("--shortest", type=int, help="lengths from here on; by default all alike")
    parser.add_argument("--terms", type=int, nargs="+", default=[30_522, 250_002][: 1 + ON_GPU])
    parser.add_argument("--width", type=int, default=768 if ON_GPU else 384)
    parser.add_argument("--rounds", type=int, default=10 if ON_GPU else 3, help="for the median")
    options = parser.parse_args()
    print(
        f"{'bf16' if native_bf16() else 'float32'}, {options.texts} texts of "
        f"{options.shortest or options.length} to {options.length} tokens, width {options.width}, "
        f"{torch.cuda.get_device_name() if ON_GPU else f'{torch.get_num_threads()} threads'}, "
        f"torch {torch.__version__}"
    )
    ways: dict[str, Way] = {
        "plain": _plain,
        "pieces": _pieces,
        "gathered": partial(_isthmus, False),
        **({"kernels": partial(_isthmus, True)} if _kernels_run() else {}),
    }
    _print_errors(ways)
    shortest = options.shortest or options.length
    for terms in options.terms:
        for share in _SHARES:
            case = _case(options.texts, (shortest, options.length), (terms, options.width), share)
            _print_ways(ways, case, options.rounds, share)
        if "kernels" in ways:
            _print_kernels(case, options.rounds)


def _kernels_run() -> bool:
    here = torch.ones(1, 1, device=DEVICE, dtype=torch.bfloat16)
    return lexicon._has_kernels(here, here)


def _plain(given: Prediction, inside: Tensor) -> Tensor:
    logits = functional.linear(given.features, given.matrix, given.bias)
    weights = torch.log1p(torch.relu(logits)) * inside[:, :, None]
    return weights.max(1).values


def _pieces(given: Prediction, inside: Tensor) -> Tensor:
    first = given.features[torch.arange(len(inside), device=DEVICE), inside.int().argmax(1)]
    features = torch.where(inside[:, :, None], given.features, first[:, None])
    wide, offsets = aligned(given.matrix, given.bias)
    step = rows_at_once(inside.shape[1] * len(wide), features.device)
    logits = (functional.linear(part, wide, offsets) for part in torch.split(features, step))
    largest = [part.max(1).values if part.requires_grad else part.amax(1) for part in logits]
    return torch.cat(largest)[:, : len(given.matrix)].float().relu().log1p()


def _isthmus(kernels: bool, given: Prediction, inside: Tensor) -> Tensor:
    switch.KERNELS = kernels
    return lexicon.largest_of(given, inside).relu().log1p()


def _case(texts: int, lengths: tuple[int, int], matrix: tuple[int, int], share: float) -> Case:
    """Random numbers; the bias leaves about that share of the terms a weight."""
    generator = torch.Generator(DEVICE).manual_seed(texts)
    draw = partial(torch.randn, generator=generator, device=DEVICE)
    shortest, longest = lengths
    terms, width = matrix
    sizes = torch.randint(shortest, longest + 1, (texts, 1), generator=generator, device=DEVICE)
    inside = torch.arange(longest, device=DEVICE) < sizes
    # A logit is a standard normal number; of n, the largest stays below x with Φ(x)ⁿ.
    level = (
        10.0
        if share == 1
        else -float(
            torch.special.ndtri(torch.tensor((1 - share) ** (1 / longest), dtype=torch.float64))
        )
    )
    return Case(
        draw(texts, longest, width),
        draw(terms, width) / width**0.5,
        torch.full((terms,), level, device=DEVICE),
        inside,
        draw(texts, terms),
    ).to(torch.float32)


def _train(way: Way, case: Case) -> tuple[Tensor, ...]:
    with torch.autocast(DEVICE, torch.bfloat16, enabled=native_bf16()):
        weights = way(case.given, case.inside)
    return torch.autograd.grad(weights, case[:3], case.slopes)


def _encode(way: Way, case: Case) -> Tensor:
    with torch.autocast(DEVICE, torch.bfloat16, enabled=native_bf16()), torch.no_grad():
        return way(case.given, case.inside)


def _print_errors(ways: dict[str, Way]) -> None:
    """|found - exact| / |exact| of weights and gradients; a near tie may go to another place."""
    case = _case(6, (1, 200), (1000, 256), 0.5)
    if native_bf16():  # what goes in is rounded once, by everyone
        case = case.to(torch.bfloat16).to(torch.float32)
    exact = case.to(torch.float64)
    expected = _plain(exact.given, exact.inside)
    slopes = torch.autograd.grad(expected, exact[:3], exact.slopes)
    for name, way in ways.items():
        found = (_encode(way, case), *_train(way, case))
        print_errors(
            name, ("weights", "features", "matrix", "bias"), found, (expected.detach(), *slopes)
        )


def _print_ways(ways: dict[str, Way], case: Case, rounds: int, share: float) -> None:
    terms = len(case.matrix)
    print(f"{terms:,} terms, {share:.0%} of them with a weight")
    works: Works = {
        (name, kind): partial(work, way, case)
        for name, way in ways.items()
        for kind, work in (("encode", _encode), ("train", _train))
    }
    print_ways(works, rounds)


def _print_kernels(case: Case, rounds: int) -> None:
    """Each kernel alone, in the tiles that one might choose."""
    from isthmus.nn.lexicon_kernels import (
        RANGES,
        TILES,
        Tiles,
        features_gradient,
        find_largest,
        matrix_gradient,
    )

    case = case.to(torch.bfloat16)
    features, matrix, slopes = case.features.detach(), case.matrix.detach(), case.slopes.float()
    flat = features.flatten(0, 1)
    tiles = {
        "128 x 128": TILES,
        "128 x 128, eight warps": TILES._replace(warps=8, stages=4),
        "128 x 128, two programs": TILES._replace(warps=8, registers=128),
        "128 x 256": Tiles(128, 256, 64, 8, 3),
        "256 x 128": Tiles(256, 128, 64, 8, 3),
        "16 texts": TILES._replace(rows=16),
    }
    works: Works = {
        ("find", name): partial(
            find_largest, features, matrix, None, case.inside, True, tiles=chosen
        )
        for name, chosen in tiles.items()
    }
    places = find_largest(features, matrix, None, case.inside, True)[1]
    assert places is not None
    works["order", "by place"] = partial(lexicon._by_place, places, slopes, len(flat))
    ordered = lexicon._by_place(places, slopes, len(flat))
    for stages in (1, 2, 3, 4):
        gathering = RANGES._replace(stages=stages)
        name = f"{stages} stages"
        works["features", name] = partial(features_gradient, *ordered, matrix, gathering=gathering)
        works["matrix", name] = partial(matrix_gradient, places, slopes, flat, gathering=gathering)
    operations = 2 * int(case.inside.sum()) * matrix.numel()
    gathered = 2 * slopes.numel() * matrix.shape[1]
    for (kind, name), found in in_turns(works, rounds).items():
        rate = {
            "find": f"{operations / found / 1e9:6.0f} TFLOP/s",
            "order": "",
        }.get(kind, f"{gathered / found / 1e9:6.2f} TB/s gathered")
        print(f"{kind:>9}  {name:<24}{found:8.3f} ms  {rate}", flush=True)


if __name__ == "__main__":
    main()
