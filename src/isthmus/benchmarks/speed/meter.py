"""Time and memory of the device that trains."""

from __future__ import annotations

import time

import torch


def device() -> torch.device:
    """Where training happens."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def now() -> float:
    """Seconds, once the device has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def allocated() -> int:
    """Bytes in use on the device; 0 where torch does not count them."""
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def reset_peak() -> None:
    """Starts to count the bytes in use anew."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak(before: int | None = None) -> int | None:
    """Bytes that were in use at most, beside those before or now; others' are in both."""
    if not torch.cuda.is_available():
        return None
    beside = torch.cuda.memory_allocated() if before is None else before
    return torch.cuda.max_memory_allocated() - beside
