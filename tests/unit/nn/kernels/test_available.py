"""Where kernels of our own run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from isthmus.nn.kernels import available

GPU = torch.device("cuda", 0)


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A GPU that can, beside a Triton of which nothing is known yet."""
    found = SimpleNamespace(major=9, shared_memory_per_block_optin=232448)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(available, "find_spec", lambda name: object())
    forget()
    yield found
    forget()


def forget() -> None:
    for asked in (available._able, available._compiles):
        asked.cache_clear()


def trial(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    module = ModuleType("isthmus.nn.kernels.trial_triton")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_where_triton_compiles(chip: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    trial(monkeypatch, asked.append)
    assert available.has_triton(GPU)
    assert available.has_triton(GPU, shared=200_000)
    assert not available.has_triton(GPU, shared=300_000)
    assert asked == [GPU], "once"
    monkeypatch.setattr(available, "KERNELS", False)
    assert not available.has_triton(GPU)


def test_without_a_compiler_plain_torch_is_left(
    chip: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(device: torch.device) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC")

    said: list[str] = []
    trial(monkeypatch, run)
    monkeypatch.setattr(available, "notice", said.append)
    assert not any(available.has_triton(GPU, shared) for shared in (0, 0, 1000))
    assert len(said) == 1, "once"
    assert "Failed to find C compiler. Please" in said[0]
    assert "gcc" in said[0]


def test_an_old_chip_is_not_asked(chip: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    trial(monkeypatch, asked.append)
    chip.major = 7
    assert not available.has_triton(GPU)
    assert not asked
