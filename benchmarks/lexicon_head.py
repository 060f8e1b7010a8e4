"""The largest logit of each text and term, trained and encoded, four ways in turns.

plain: as one writes SPLADE, all logits at once. pieces: some texts at a time, gradients by matrix
products. gathered: pieces, with gathered gradients, isthmus without a GPU. kernels: isthmus with
one. docs/decisions/lexicon-kernels.md says what was expected of it.

    python benchmarks/lexicon_head.py [--texts 128] [--length 144] [--terms 30522 250002]

--tiles: instead of that, each kernel in all shapes that might be chosen, on texts of real lengths.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from in_turns import DEVICE, ON_GPU, Works, in_turns, print_errors, print_ways, timed
from torch import Tensor

from isthmus.nn.kernels import available as switch
from isthmus.nn.kernels import lexicon
from isthmus.nn.precision import native_bf16
from isthmus.nn.prediction import Prediction
from isthmus.nn.vocabulary_product import aligned, rows_at_once

Way = Callable[[Prediction, Tensor], Tensor]
# Of all terms, those with a weight: as LexMAE's softmax has them, and as a trained SPLADE does.
_SHARES = (1.0, 0.01)
# Texts and padding of one step of LexMAE, and tokens of a passage: their mean and how they vary.
_STEP, _MEAN, _SPREAD = (256, 144), 73, 30


class Case(NamedTuple):
    """Texts, a vocabulary, and what comes back from the loss."""

    features: Tensor
    matrix: Tensor
    bias: Tensor
    inside: Tensor
    above: Tensor

    @property
    def given(self) -> Prediction:
        """What the head says of the texts."""
        return Prediction(self.features, self.matrix, self.bias)

    def to(self, dtype: torch.dtype) -> Case:
        """The same numbers in another type, to be trained."""
        features, matrix, bias = (part.detach().to(dtype).requires_grad_() for part in self[:3])
        return Case(features, matrix, bias, self.inside, self.above.to(dtype))


def main() -> None:
    """Prints milliseconds, peak memory and both as ratios against plain torch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=128 if ON_GPU else 8)
    parser.add_argument("--length", type=int, default=144 if ON_GPU else 64, help="tokens a text")
    parser.add_argument("--shortest", type=int, help="lengths from here on; by default all alike")
    parser.add_argument("--terms", type=int, nargs="+", default=[30_522, 250_002][: 1 + ON_GPU])
    parser.add_argument("--width", type=int, default=768 if ON_GPU else 384)
    parser.add_argument("--rounds", type=int, default=10 if ON_GPU else 3, help="for the median")
    parser.add_argument("--tiles", action="store_true", help="all shapes of each kernel, sorted")
    options = parser.parse_args()
    if options.tiles and not _kernels_run():
        parser.error("--tiles needs a GPU that the kernels run on")
    if options.tiles:
        _print_shapes(options.rounds)
        return
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
    return given.largest(inside).relu().log1p()


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
    return torch.autograd.grad(weights, case[:3], case.above)


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
    above = torch.autograd.grad(expected, exact[:3], exact.above)
    for name, way in ways.items():
        found = (_encode(way, case), *_train(way, case))
        print_errors(
            name, ("weights", "features", "matrix", "bias"), found, (expected.detach(), *above)
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
    """Each kernel alone."""
    from isthmus.nn.kernels.lexicon_triton import (
        features_gradient,
        find_largest,
        matrix_gradient,
    )

    case = case.to(torch.bfloat16)
    features, matrix, above = case.features.detach(), case.matrix.detach(), case.above.float()
    flat = features.flatten(0, 1)
    find = partial(find_largest, features, matrix, None, case.inside, True)
    works: Works = {("find", ""): find}
    places = find()[1]
    assert places is not None
    works["order", ""] = partial(lexicon._by_place, places, above, len(flat))
    ordered = lexicon._by_place(places, above, len(flat))
    works["features", ""] = partial(features_gradient, *ordered, matrix)
    works["matrix", ""] = partial(matrix_gradient, places, above, flat)
    operations = 2 * int(case.inside.sum()) * matrix.numel()
    gathered = 2 * above.numel() * matrix.shape[1]
    for (kind, _), found in in_turns(works, rounds).items():
        rate = {
            "find": f"{operations / found / 1e9:6.0f} TFLOP/s",
            "order": "",
        }.get(kind, f"{gathered / found / 1e9:6.2f} TB/s gathered")
        print(f"{kind:>9}{found:8.3f} ms  {rate}", flush=True)


def _print_shapes(rounds: int) -> None:
    """Each kernel in each shape, the quickest first, and whether it finds what the default does."""
    from isthmus.nn.kernels import lexicon_triton as kernels

    case = _case(_STEP[0], (_STEP[1], _STEP[1]), (30_522, 768), 1.0).to(torch.bfloat16)
    generator = torch.Generator().manual_seed(_MEAN)
    sizes = (torch.randn(_STEP[0], generator=generator) * _SPREAD + _MEAN).clamp(4, _STEP[1])
    inside = (torch.arange(_STEP[1]) < sizes[:, None].round()).to(DEVICE)
    features, matrix, above = case.features.detach(), case.matrix.detach(), case.above.float()
    flat = features.flatten(0, 1)
    print(
        f"{_STEP[0]} texts of {int(inside.sum()) / len(inside):.1f} tokens, at most {_STEP[1]}, "
        f"{len(matrix):,} terms, {matrix.shape[1]} wide, torch {torch.__version__}"
    )
    products = 2 * int(inside.sum()) * matrix.numel()
    gathered = 2 * above.numel() * matrix.shape[1]

    find = partial(kernels.find_largest, features, matrix, None, inside, True)
    places = find()[1]
    assert places is not None
    _print_sorted(
        "forward, with places",
        {str(tiles): partial(find, tiles=tiles) for tiles in _tiles(kernels)},
        rounds,
        lambda found: f"{products / found / 1e9:6.0f} TFLOP/s",
    )
    ordered = lexicon._by_place(places, above, len(flat))
    _print_sorted(
        "gradient of features",
        {
            str(gathering): partial(kernels.features_gradient, *ordered, matrix, gathering)
            for gathering in _ranges(kernels.RANGES)
        },
        rounds,
        lambda found: f"{gathered / found / 1e9:6.2f} TB/s gathered",
    )
    _print_sorted(
        "gradient of the matrix",
        {
            str(gathering): partial(kernels.matrix_gradient, places, above, flat, gathering)
            for gathering in _places(kernels.PLACES)
        },
        rounds,
        lambda found: f"{gathered / found / 1e9:6.2f} TB/s gathered",
    )
    order = in_turns({("order", ""): partial(lexicon._by_place, places, above, len(flat))}, rounds)
    print(f"the order by place: {order['order', '']:.3f} ms")


def _tiles(kernels: Any) -> list[Any]:
    """Shapes of the forward kernel, the default first."""
    large, small = kernels._LARGE, kernels._SMALL
    return [
        kernels.tiles_for(torch.device("cuda")),
        large,
        large._replace(rows=32),
        large._replace(rows=8),
        large._replace(stages=3),
        large._replace(stages=3, slots=16),
        small,
        small._replace(slots=16),
        small._replace(tokens=256, slots=16, warps=8),
    ]


def _ranges(default: Any) -> list[Any]:
    """The same for the gradient of features."""
    return [
        default,
        default._replace(columns=64),
        default._replace(vectors=8, columns=256),
        default._replace(vectors=8, warps=1),
        default._replace(vectors=32),
        default._replace(warps=4),
        default._replace(vectors=32, warps=4),
        default._replace(columns=256, warps=4),
        default._replace(vectors=32, columns=256, warps=8),
    ]


def _places(default: Any) -> list[Any]:
    """The same for the gradient of the matrix."""
    return [
        default,
        default._replace(vectors=32),
        default._replace(vectors=32, warps=1),
        default._replace(warps=4),
        default._replace(vectors=128, warps=4),
        default._replace(vectors=256, warps=8),
        default._replace(columns=128, warps=4),
    ]


def _print_sorted(
    title: str, works: dict[str, Callable[[], Any]], rounds: int, rate: Callable[[float], str]
) -> None:
    """Milliseconds of each, medians of turns; the first is what the others are held against."""
    print(title, flush=True)
    expected: Any = None
    checks, failed = {}, {}
    for name, work in works.items():
        try:
            found = work()
            torch.cuda.synchronize()
        except Exception as error:  # a shape that the device has no room for, or no compiler takes
            failed[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
            continue
        expected = found if expected is None else expected
        checks[name] = _difference(found, expected)
        del found
    times: dict[str, list[float]] = {name: [] for name in checks}
    for _ in range(rounds):
        for name in checks:
            times[name].append(timed(works[name]))
    medians = {name: statistics.median(some) for name, some in times.items()}
    for name in sorted(medians, key=medians.__getitem__):
        took = medians[name]
        print(f"  {took:7.3f} ms  {rate(took)}  {checks[name]:<24}  {name}", flush=True)
    for name, error in failed.items():
        print(f"  {'failed':>7}     {name}: {error}", flush=True)


def _difference(found: Any, expected: Any) -> str:
    if isinstance(found, tuple):
        pairs = zip(found, expected, strict=True)
        values, places = (int((one != other).sum()) for one, other in pairs)
        return f"{values} values, {places} places other" if values or places else "the same"
    error = float((found - expected).norm() / expected.norm())
    return f"error {error:.0e}" if error else "the same"


if __name__ == "__main__":
    main()
