"""GPU memory of torch's allocator: expandable segments, releasing it, out-of-memory errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# The environment variables of the allocator; torch takes the first that is set.
_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_LACKING = ("out of memory", "ALLOC_FAILED")  # of CUDA itself; of cuBLAS and cuDNN


@contextmanager
def growing_segments() -> Iterator[None]:
    """Lets the allocator's segments expand, unless the environment sets that already.

    In fixed segments, batches of many shapes leave gaps that can be as large as a batch.
    """
    given = next((os.environ[name] for name in _SETTINGS if os.environ.get(name)), "")
    if not torch.cuda.is_available() or "expandable_segments" in given or not in_segments():
        yield
        return

    def let(grow: bool) -> None:  # with the environment's settings, which would be reset otherwise
        settings = [given] * bool(given) + [f"expandable_segments:{grow}"]
        torch._C._accelerator_setAllocatorSettings(",".join(settings))

    let(grow=True)
    try:
        yield
    finally:
        let(grow=False)
        give_back()  # free memory in expanded segments would stay unused from here on


def in_segments() -> bool:
    """Whether torch's own allocator is in use, not backend:cudaMallocAsync."""
    return bool(torch.cuda.get_allocator_backend() == "native")


def give_back() -> None:
    """Releases free memory to the device, after synchronising."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # For expandable segments, torch waits only for the stream that allocated them.
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def lacks_memory(error: RuntimeError) -> bool:
    """Whether an error means out of memory; libraries word it differently."""
    message = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(words in message for words in _LACKING)
