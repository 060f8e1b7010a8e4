"""How memory of a GPU is taken; what needs one is in test_trainer.py."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from isthmus.training.memory import _SETTINGS, growing_segments


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What torch's allocator is told, as if there were a GPU and the environment said nothing."""
    told = ["untouched"]
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    for name in _SETTINGS:
        monkeypatch.delenv(name, raising=False)
    return told


@pytest.mark.parametrize(
    ("given", "within", "behind"),
    [
        ("", "expandable_segments:True", "expandable_segments:False"),
        (
            "max_split_size_mb:512",
            "max_split_size_mb:512,expandable_segments:True",
            "max_split_size_mb:512,expandable_segments:False",
        ),
        ("expandable_segments:False", "untouched", "untouched"),
    ],
)
@pytest.mark.parametrize("name", _SETTINGS)
def test_segments_grow_unless_the_environment_has_a_word_on_them(
    name: str,
    given: str,
    within: str,
    behind: str,
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, given)
    with suppress(KeyboardInterrupt), growing_segments():
        assert told[-1] == within
        raise KeyboardInterrupt
    assert told[-1] == behind


def test_of_two_settings_torchs_first_counts(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:512")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    with growing_segments():
        assert told == ["untouched"]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("get_allocator_backend", "cudaMallocAsync"),
        ("is_available", False),
    ],
)
def test_where_torch_has_no_segments_of_a_gpu_nothing_grows(
    name: str, answer: object, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, name, lambda: answer)
    with growing_segments():
        assert told == ["untouched"]
