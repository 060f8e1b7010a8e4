"""Attention within texts of real lengths, and with what each row may see, in several ways in turns.

plain: torch's scaled_dot_product_attention over the padded batch, with a mask. flash: torch's
kernel for texts of many lengths, on a GPU. kernels: those of isthmus. Everyone puts the gradients
of queries, keys and values together, as the product that made them wants them.
docs/decisions/own-layers.md.

    python benchmarks/attention.py [--texts 256] [--heads 12] [--tiles]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from in_turns import DEVICE, ON_GPU, Works, in_turns, print_errors, print_ways
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from isthmus.nn.attention import _has_kernel, packed_attention
from isthmus.nn.kernels.available import has_kernels
from isthmus.nn.kernels.short_attention import attend_shortly
from isthmus.nn.packing import Masked, Packing

DTYPE = torch.bfloat16 if ON_GPU else torch.float32
WIDTH = 64  # of a head
_MEAN, _DEVIATION, _LEAST, _MOST = 73, 28, 12, 144  # tokens of a text


class Case(NamedTuple):
    """Queries, keys and values of a stream [tokens, 3, heads, width], and what its rows see."""

    projected: Tensor
    bias: Tensor
    packing: Packing
    visible: Tensor | None
    above: Tensor
    rate: float


Way = Callable[[Case], Tensor]


def main() -> None:
    """Prints milliseconds, peak memory and both as ratios against the plain way, and errors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=256 if ON_GPU else 4)
    parser.add_argument("--heads", type=int, default=12 if ON_GPU else 2)
    parser.add_argument("--long", type=int, default=512 if ON_GPU else 96, help="tokens, masked")
    parser.add_argument("--rate", type=float, default=0.1, help="of dropout")
    parser.add_argument("--rounds", type=int, default=20 if ON_GPU else 2, help="for the median")
    parser.add_argument("--tiles", action="store_true", help="other tiles of our kernels, too")
    options = parser.parse_args()
    ours = has_kernels(torch.ones(1, device=DEVICE, dtype=DTYPE))
    kernels: dict[str, Way] = {"kernels": _kernels} if ours else {}
    print(f"{DTYPE}, {options.heads} heads, dropout {options.rate}, torch {torch.__version__}")

    case = _packed(options.texts, options.heads, options.rate)
    flash: dict[str, Way] = {"flash": _flash} if _has_kernel(case.projected) else {}
    print(f"{options.texts} texts, {len(case.projected) / options.texts:.1f} tokens on average")
    _compare({"plain": _plain, **flash, **kernels}, case, options.rounds)
    if ours and options.tiles:
        _print_tiles(case, options.rounds)

    texts = max(options.texts // 4, 2)
    print(f"{texts} texts of {options.long} tokens, of which a row sees a half")
    case = _masked(texts, options.long, options.heads, options.rate)
    _compare({"plain": _plain, **kernels}, case, options.rounds)
    if ours and options.tiles:
        _print_tiles(case, options.rounds)


def _packed(texts: int, heads: int, rate: float) -> Case:
    generator = torch.Generator().manual_seed(1)
    sizes = torch.randn(texts, generator=generator) * _DEVIATION + _MEAN
    sizes = sizes.round().long().clamp(_LEAST, _MOST)
    sizes[0] = _MOST
    mask = torch.arange(_MOST) < sizes[:, None]
    return _case(mask, heads, rate, None)


def _masked(texts: int, length: int, heads: int, rate: float) -> Case:
    generator = torch.Generator().manual_seed(2)
    visible = torch.rand(texts, length, length, generator=generator) < 0.5
    return _case(torch.ones(texts, length), heads, rate, visible.to(DEVICE))


def _case(mask: Tensor, heads: int, rate: float, visible: Tensor | None) -> Case:
    packing = Packing.of(mask.to(DEVICE))
    generator = torch.Generator().manual_seed(3)
    tokens = len(packing.tokens)
    projected = torch.randn(tokens, 3, heads, WIDTH, generator=generator).to(DEVICE, DTYPE)
    above = torch.randn(tokens, heads, WIDTH, generator=generator).to(DEVICE, DTYPE)
    bias = torch.zeros(3 * heads * WIDTH, device=DEVICE, requires_grad=True)
    return Case(projected.requires_grad_(), bias, packing, visible, above, rate)


def _plain(case: Case) -> Tensor:
    packing = case.packing
    queries, keys, values = packing.unpack(case.projected[None]).transpose(1, 3).unbind(2)
    visible = packing.visible() if case.visible is None else case.visible[:, None]
    answers = scaled_dot_product_attention(
        queries, keys, values, attn_mask=visible, dropout_p=case.rate
    )
    return packing.pack(answers.transpose(1, 2)).squeeze(0)


def _flash(case: Case) -> Tensor:
    queries, keys, values = (part.transpose(0, 1)[None] for part in case.projected.unbind(1))
    answers = packed_attention((queries, keys, values), case.packing, case.rate)
    return answers.squeeze(0).transpose(0, 1)


def _kernels(case: Case) -> Tensor:
    packing, visible = case.packing, case.visible
    seen = packing if visible is None else Masked(packing, visible)
    return attend_shortly((case.projected,), (case.bias,), seen, case.rate)


def _forward(way: Way, case: Case) -> Tensor:
    with torch.no_grad():
        return way(case)


def _train(way: Way, case: Case) -> tuple[Tensor, ...]:
    return torch.autograd.grad(way(case), [case.projected], case.above)


def _compare(ways: dict[str, Way], case: Case, rounds: int) -> None:
    """Errors against plain attention in float32, without dropout; then times."""
    quiet = case._replace(rate=0.0)
    exact = quiet._replace(
        projected=case.projected.detach().float().requires_grad_(), above=case.above.float()
    )
    expected = [_plain(exact).detach().double(), *_train(_plain, exact)]
    for name, way in ways.items():
        found = [_forward(way, quiet), *_train(way, quiet)]
        kinds = ("answers", "gradients")
        print_errors(name, kinds, found, [each.double() for each in expected])
    works: Works = {
        (name, kind): partial(work, way, case)
        for name, way in ways.items()
        for kind, work in (("forward", _forward), ("train", _train))
    }
    print_ways(works, rounds)


def _print_tiles(case: Case, rounds: int) -> None:
    """Our kernels as one might choose their tiles."""
    from isthmus.nn.kernels import short_attention_triton as kernels
    from isthmus.nn.kernels.short_attention_triton import Tile

    chosen = kernels.TUNING

    def tuned(tuning: kernels.Tuning, work: Callable[[Way, Case], object]) -> None:
        kernels.TUNING = tuning
        try:
            work(_kernels, case)
        finally:
            kernels.TUNING = chosen

    def runs(name: str, tuning: kernels.Tuning) -> bool:
        try:
            tuned(tuning, _train)
            torch.cuda.synchronize()
        except Exception as error:  # more than a multiprocessor has
            said = " ".join(str(error).split())[:80]
            print(f"  {name}: {type(error).__name__}: {said}", flush=True)
            return False
        return True

    # None back without stages: as compiled by Triton 3.6, one of them reads where nothing is.
    forward = [
        Tile(64, 64, 4, 2), Tile(64, 64, 4, 1), Tile(64, 64, 4, 3, 128), Tile(64, 32, 4, 2),
        Tile(64, 32, 4, 3, 96), Tile(64, 128, 4, 1), Tile(32, 64, 2, 2), Tile(128, 64, 8, 2, 128),
        Tile(128, 128, 8, 1),
    ]  # fmt: skip
    short = [
        Tile(32, 64, 4, 2, 168), Tile(16, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 8, 2),
        Tile(32, 64, 4, 3),
    ]  # fmt: skip
    middle = [
        Tile(32, 128, 8, 2, 128), Tile(16, 128, 8, 2), Tile(64, 128, 8, 2), Tile(32, 128, 4, 2),
        Tile(16, 128, 4, 2),
    ]  # fmt: skip
    long = [Tile(64, 64, 4, 2), Tile(32, 128, 8, 2), Tile(64, 128, 8, 2)]
    queries = [Tile(64, 32, 4, 2), Tile(128, 64, 8, 2), Tile(64, 64, 4, 2, 168)]
    tried = [("as chosen", chosen)]
    for name, tiles in (
        ("forward", forward),
        ("short", short),
        ("middle", middle),
        ("long", long),
        ("long_queries", queries),
    ):
        tried += [(f"{name} {tuple(tile)}", chosen._replace(**{name: tile})) for tile in tiles]
    tried = [(name, tuning) for name, tuning in tried if runs(name, tuning)]
    works: Works = {
        (name, kind): partial(tuned, tuning, work)
        for name, tuning in tried
        for kind, work in (("forward", _forward), ("train", _train))
    }
    found = in_turns(works, rounds)
    for name, _ in tried:
        times = "  ".join(f"{kind} {found[name, kind]:7.3f} ms" for kind in ("forward", "train"))
        print(f"  {name:<42}{times}", flush=True)


if __name__ == "__main__":
    main()
