"""Where kernels of our own run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from isthmus.nn import kernels


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A GPU that can, beside a Triton of which nothing is known yet."""
    found = SimpleNamespace(major=9, shared_memory_per_block_optin=232448)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    forget()
    yield found
    forget()


def forget() -> None:
    for asked in (kernels._able, kernels._compiles):
        asked.cache_clear()


def trial(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    module = ModuleType("isthmus.nn.trial_kernel")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_where_triton_compiles(chip: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    trial(monkeypatch, asked.append)
    assert kernels.has_triton(0)
    assert kernels.has_triton(0, shared=200_000)
    assert not kernels.has_triton(0, shared=300_000)
    assert asked == [0], "once"
    monkeypatch.setattr(kernels, "KERNELS", False)
    assert not kernels.has_triton(0)


def test_without_a_compiler_plain_torch_is_left(
    chip: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(device: int) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC")

    said: list[str] = []
    trial(monkeypatch, run)
    monkeypatch.setattr(kernels, "notice", said.append)
    assert not any(kernels.has_triton(0, shared) for shared in (0, 0, 1000))
    assert len(said) == 1, "once"
    assert "Failed to find C compiler. Please" in said[0]
    assert "gcc" in said[0]


def test_an_old_chip_is_not_asked(chip: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    trial(monkeypatch, asked.append)
    chip.major = 7
    assert not kernels.has_triton(0)
    assert not asked
