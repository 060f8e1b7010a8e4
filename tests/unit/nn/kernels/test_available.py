"""Where kernels of our own run."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from isthmus.nn.kernels import available

NUMBERS = itertools.count(100)  # of GPUs of which nothing is known yet


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU that can."""
    found = SimpleNamespace(major=9, shared_memory_per_block_optin=232448)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(available, "find_spec", lambda name: object())
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: SimpleNamespace(device=device))
    return found


def new_gpu() -> torch.device:
    return torch.device("cuda", next(NUMBERS))


def trial(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    module = ModuleType("isthmus.nn.kernels.norm_gelu_triton")
    module.added = lambda numbers: run(numbers.device)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_where_triton_compiles(chip: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    trial(monkeypatch, asked.append)
    gpu = new_gpu()
    assert available.has_triton(gpu)
    assert available.has_triton(gpu, shared=200_000)
    assert not available.has_triton(gpu, shared=300_000)
    assert asked == [gpu], "once"
    types = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
    numbers: list[Any] = [SimpleNamespace(device=gpu, dtype=dtype) for dtype in types]
    assert [available.has_half_kernels(each) for each in numbers] == [True, True, False, False]
    assert not available.has_half_kernels(torch.ones(2, 2).bfloat16()), "a CPU has none"
    monkeypatch.setattr(available, "KERNELS", False)
    assert not available.has_triton(gpu)
    assert not any(available.has_half_kernels(each) for each in numbers)


def test_without_a_compiler_plain_torch_is_left(
    chip: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(device: torch.device) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC")

    said: list[str] = []
    trial(monkeypatch, run)
    monkeypatch.setattr(available, "notice", said.append)
    gpu = new_gpu()
    assert not any(available.has_triton(gpu, shared) for shared in (0, 0, 1000))
    assert len(said) == 1, "once"
    assert "Failed to find C compiler. Please" in said[0]


def test_an_old_chip_is_not_asked(chip: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    trial(monkeypatch, asked.append)
    chip.major = 7
    assert not available.has_triton(new_gpu())
    assert not asked
