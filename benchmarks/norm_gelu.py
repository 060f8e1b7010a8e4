"""What lies between a layer's products, kernel by kernel, against a copy of as many bytes.

Each is launched many times in one graph, so that launching takes no part; backward kernels with the
sum of their partial sums. Without a GPU, what plain torch does instead. With --tiles, also as one
might share the work in other ways, the fastest first; a way that comes to something else says so.
docs/decisions/own-layers.md.

    python benchmarks/norm_gelu.py [--rows 32768 19200] [--width 768] [--tiles]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from in_turns import DEVICE, ON_GPU, Works, in_turns
from torch import Tensor, nn

from isthmus.nn.kernels.available import has_kernels
from isthmus.nn.kernels.norm_gelu import bias_gelu, drop_add_norm

DTYPE = torch.bfloat16 if ON_GPU else torch.float32
Results = tuple[Tensor, ...]


class Kernel(NamedTuple):
    """A call, how often it reads or writes as much as the states, and other tunings to try."""

    call: Callable[[], Results]
    passes: int
    tried: list[dict[str, Any]]


def main() -> None:
    """Prints µs and TB/s of each kernel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[32768, 19200] if ON_GPU else [21])
    parser.add_argument("--width", type=int, default=768 if ON_GPU else 64)
    parser.add_argument("--rate", type=float, default=0.1, help="of dropout")
    parser.add_argument("--launches", type=int, default=20 if ON_GPU else 1, help="in a graph")
    parser.add_argument("--rounds", type=int, default=10 if ON_GPU else 1, help="for the median")
    parser.add_argument("--tiles", action="store_true", help="other ways to share the work, too")
    options = parser.parse_args()
    print(f"{DTYPE}, rows of {options.width}, dropout {options.rate}, torch {torch.__version__}")
    for rows in options.rows:
        if has_kernels(torch.ones(1, device=DEVICE, dtype=DTYPE)):
            from isthmus.nn.kernels import norm_gelu_triton

            found = _timed(norm_gelu_triton, _kernels(norm_gelu_triton, rows, options), options)
        else:
            found = _timed(None, _plain(rows, options), options)
        print(f"{rows:,} rows")
        for name, kernel, described, taken in found:
            size = kernel.passes * rows * options.width * DTYPE.itemsize
            speed = f"{size / taken / 1e6:6.3f} TB/s" if size else ""
            print(f"  {name:<10}{taken:8.1f} µs  {speed:<11}  {described}", flush=True)


def _numbers(*shape: int, seed: int, dtype: torch.dtype = DTYPE) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def _plain(rows: int, options: argparse.Namespace) -> dict[str, Kernel]:
    width = options.width
    states, residual = (_numbers(rows, width, seed=seed) for seed in (1, 2))
    wide, wide_bias = _numbers(rows, 4 * width, seed=3), _numbers(4 * width, seed=4)
    norm = nn.LayerNorm(width).to(DEVICE, DTYPE)
    given = states, states[0], residual, norm
    return {
        "copy": Kernel(lambda: (states.clone(),), 2, []),
        "norm": Kernel(lambda: drop_add_norm(*given, options.rate), 4, []),
        "gelu": Kernel(lambda: (bias_gelu(wide, wide_bias),), 8, []),
    }


def _kernels(module: Any, rows: int, options: argparse.Namespace) -> dict[str, Kernel]:
    width, exact = options.width, torch.float32
    states, residual, above, beside = (_numbers(rows, width, seed=seed) for seed in range(4))
    bias, weight, offset = (_numbers(width, seed=seed, dtype=exact) for seed in range(4, 7))
    wide, wide_above = (_numbers(rows, 4 * width, seed=seed) for seed in (7, 8))
    wide_bias = _numbers(4 * width, seed=9, dtype=exact)
    size = min(width, 64)
    # As attention leaves them: row by row.
    parts = [
        _numbers(1, rows, width // size, size, seed=seed).transpose(1, 2) for seed in (10, 11, 12)
    ]
    sums = _numbers(264, 3 * width, seed=13, dtype=exact)
    drawn = module.Draw.next(options.rate, torch.device(DEVICE))
    before = states, bias, residual, weight, offset, 1e-5
    _, summed, moments = module.norm_forward(*before, drawn, DTYPE)

    back = above, beside, summed, moments, weight, drawn, DTYPE
    return {
        "copy": Kernel(lambda: (states.clone(),), 2, []),
        "norm": Kernel(lambda: module.norm_forward(*before, drawn, DTYPE), 4, []),
        "norm back": Kernel(lambda: module.norm_backward(*back), 5, _BACK),
        "gelu": Kernel(lambda: (module.gelu_forward(wide, wide_bias),), 8, _GELU),
        "gelu back": Kernel(
            lambda: module.gelu_backward(wide_above, wide, wide_bias), 12, _GELU_BACK
        ),
        "join": Kernel(lambda: module.join(parts), 6, _JOIN),
        "sum": Kernel(lambda: (module.added(sums),), 0, _SUM),
    }


def _every(**choices: Iterable[Any]) -> list[dict[str, Any]]:
    return [dict(zip(choices, each, strict=True)) for each in product(*choices.values())]


# At 768 columns and for a chip of compute capability 9.0.
_BACK = _every(norm_stages=[1, 2, 4])
_GELU = _every(rows=[4, 16])
_GELU_BACK = [*_every(gelu_programs=[6]), *_every(stages=[3])]
_JOIN = [
    *_every(join_stages=[1, 3]),
    *_every(join_programs=[4, 6]),
    *_every(join_rows=[8], join_columns=[256], join_programs=[4, 5, 6]),
    *_every(join_rows=[4], join_columns=[512], join_programs=[6]),
]
_SUM = _every(sum_columns=[4, 8, 32])


def _timed(
    module: Any, kernels: dict[str, Kernel], options: argparse.Namespace
) -> list[tuple[str, Kernel, str, float]]:
    """Each kernel with what is changed of its tuning, and µs, the fastest first."""
    works: Works = {}
    pool = torch.cuda.graph_pool_handle() if ON_GPU else None
    for name, kernel in kernels.items():
        exact = kernel.call()
        for changed in [{}, *(kernel.tried if options.tiles else [])]:
            described = ", ".join(f"{key} {value}" for key, value in changed.items())
            work = partial(_tuned, module, changed, kernel.call)
            try:
                found = work()
                if changed:
                    _check(exact, found)
                works[name, described or "as chosen"] = _repeated(work, options.launches, pool)
            except Exception as error:  # more than a multiprocessor has, say
                said = " ".join(str(error).split())[:80]
                print(f"  {name}, {described}: {type(error).__name__}: {said}", flush=True)
    times = in_turns(works, options.rounds)
    return [
        (name, kernel, described, 1000 * taken / options.launches)
        for name, kernel in kernels.items()
        for (whose, described), taken in sorted(times.items(), key=lambda each: each[1])
        if whose == name
    ]


def _tuned(module: Any, changed: dict[str, Any], call: Callable[[], Results]) -> Results:
    if module is None:
        return call()
    before = module.TUNING
    module.TUNING = before._replace(**changed)
    try:
        return call()
    finally:
        module.TUNING = before


def _check(exact: Results, found: Results) -> None:
    for one, other in zip(exact, found, strict=True):
        off = (one.double() - other.double()).norm() / one.double().norm()
        if not off < 1e-2:
            raise ArithmeticError(f"off by {off:.1e}")


def _repeated(work: Callable[[], object], launches: int, pool: Any) -> Callable[[], object]:
    """Many in one graph, on a GPU; what they make goes where the last ones made it."""

    def all_of_them() -> None:
        for _ in range(launches):
            work()

    if not ON_GPU:
        return all_of_them
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        all_of_them()
    return graph.replay


if __name__ == "__main__":
    main()
