"""A GPU's memory, as torch divides it: segments that grow, what is given back, when it lacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# The environment's settings of the allocator; torch takes the first.
_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_LACKING = ("out of memory", "ALLOC_FAILED")  # of CUDA itself; of cuBLAS and cuDNN


@contextmanager
def growing_segments() -> Iterator[None]:
    """Lets torch's segments of a GPU's memory grow, unless the environment has a word on them.

    In those that do not, batches of many shapes leave gaps, which can be as much as a batch takes.
    """
    given = next((os.environ[name] for name in _SETTINGS if os.environ.get(name)), "")
    if not torch.cuda.is_available() or "expandable_segments" in given or not in_segments():
        yield
        return

    def let(grow: bool) -> None:  # with what was given, which it would forget otherwise
        settings = [given] * bool(given) + [f"expandable_segments:{grow}"]
        torch._C._accelerator_setAllocatorSettings(",".join(settings))

    let(grow=True)
    try:
        yield
    finally:
        let(grow=False)
        give_back()  # what is free in those that grew is used by nobody from here on


def in_segments() -> bool:
    """Whether torch divides memory itself, not the driver (backend:cudaMallocAsync)."""
    return bool(torch.cuda.get_allocator_backend() == "native")


def give_back() -> None:
    """Gives back what is free, when no stream reads it any more."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # Of segments that grow, torch waits for the stream alone that they were taken on.
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def lacks_memory(error: RuntimeError) -> bool:
    """Whether a GPU had too little: libraries that allocate on it say so in words of their own."""
    told = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(words in told for words in _LACKING)
