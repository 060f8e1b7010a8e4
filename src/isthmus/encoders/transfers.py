"""Between the host and a GPU: neither stands still while the other works."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Protocol, TypeVar

import torch
from torch import Tensor

Taken = TypeVar("Taken")


class Result(Protocol):
    """What a pass gives, on one device: a tensor, or several together."""

    @property
    def is_cuda(self) -> bool:
        """Whether it is on a GPU."""

    @property
    def device(self) -> torch.device:
        """Where it is."""


Found = TypeVar("Found", bound=Result)
_UNDER_WAY = 2  # results that a GPU computes while an earlier one is taken: one now, one next


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, on which it may still be arriving; what is computed there waits."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # unpinned, the host would wait


def taken(results: Iterable[Found], take: Callable[[Found], Taken]) -> Iterator[Taken]:
    """What `take` makes of each result, in order; a GPU is at work on later ones meanwhile.

    `take` must bring everything home: a result's memory is used again once it is through. A result
    on the host waits for its turn too: a block without texts has one between those of a GPU.
    """
    under_way: deque[tuple[Found, torch.cuda.Event | None]] = deque()
    for result in results:
        under_way.append((result, _event(result)))
        while under_way and (len(under_way) > _UNDER_WAY or under_way[0][1] is None):
            yield _when_ready(*under_way.popleft(), take)
    while under_way:
        yield _when_ready(*under_way.popleft(), take)


def _event(result: Result) -> torch.cuda.Event | None:
    """What happens when a GPU has computed the result; nothing where it is there already."""
    return torch.cuda.current_stream(result.device).record_event() if result.is_cuda else None


def _when_ready(
    result: Found, ready: torch.cuda.Event | None, take: Callable[[Found], Taken]
) -> Taken:
    if ready is None:
        return take(result)
    # On the stream of the results, it would wait for all that were started since.
    with torch.cuda.stream(_way_home(result.device)):
        ready.wait()
        return take(result)


@lru_cache
def _way_home(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
