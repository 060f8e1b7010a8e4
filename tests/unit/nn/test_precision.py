"""On which chips products are of bf16."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from isthmus.nn.numerics import native_bf16


@pytest.mark.parametrize(("generation", "native"), [(7, False), (8, True)])
def test_bf16_that_a_gpu_emulates_is_not_used(
    generation: int, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    chip = SimpleNamespace(major=generation)  # T4 and V100 are of generation 7
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: chip)
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda _: True)
    assert native_bf16() == native
