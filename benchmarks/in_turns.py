"""What benchmarks of one operation share: who is timed in turns, at what peak of memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
Works = dict[tuple[str, str], Callable[[], object]]  # by who does it and what


def print_ways(works: Works, rounds: int) -> None:
    """Milliseconds and the peak of training, and both as ratios against plain torch.

    Each way does two things, and the second is to train.
    """
    kinds = list(dict.fromkeys(kind for _, kind in works))
    columns = (*kinds, f"peak of {kinds[-1]}")
    print(f"{'':>9}{''.join(f'  {column:>19}' for column in columns)}")
    ways = list(dict.fromkeys(name for name, _ in works))
    peaks = {name: _peak(works[name, kinds[-1]]) for name in ways}
    # What does not fit takes no part.
    fitting = {key: work for key, work in works.items() if peaks[key[0]] is not None}
    milliseconds = in_turns(fitting, rounds)
    for name, peak in peaks.items():
        if peak is None:
            print(f"{name:>9}  out of memory")
            continue
        cells = [
            f"  {milliseconds[name, kind]:8.2f} ms{_ratio(milliseconds, name, kind):>8}"
            for kind in kinds
        ]
        most = peaks["plain"]
        less = f"{most / peak:6.1f} x" if peak and most else ""
        print(f"{name:>9}{''.join(cells)}  {peak / 2**20:8,.0f} MiB{less:>8}", flush=True)


def print_errors(
    name: str, kinds: Iterable[str], found: Sequence[Tensor], exact: Sequence[Tensor]
) -> None:
    """|found - exact| / |exact| of each kind."""
    errors = [
        float((one.double() - other).norm() / other.norm())
        for one, other in zip(found, exact, strict=True)
    ]
    parts = (f"{kind} {error:.1e}" for kind, error in zip(kinds, errors, strict=True))
    print(f"{name:>9}: error of {', '.join(parts)}")


def in_turns(works: Works, rounds: int) -> dict[tuple[str, str], float]:
    """Milliseconds, the median over rounds in which each has its turn; the first warms up."""
    found: dict[tuple[str, str], list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            found[name].append(timed(work))
    return {name: statistics.median(times[1:]) for name, times in found.items()}


def _ratio(milliseconds: dict[tuple[str, str], float], name: str, kind: str) -> str:
    plain = milliseconds.get(("plain", kind))
    return "" if plain is None else f"{plain / milliseconds[name, kind]:.2f} x"


def _peak(work: Callable[[], object]) -> int | None:
    """Bytes above what is there before; 0 where nobody counts, None where they do not fit."""
    if not ON_GPU:
        return 0
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    try:
        work()  # what is made once and kept is not counted
        torch.cuda.reset_peak_memory_stats()
        work()
    except torch.OutOfMemoryError:
        return None
    return torch.cuda.max_memory_allocated() - before


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    if not ON_GPU:
        start = time.process_time()
        work()
        return 1000 * (time.process_time() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))
