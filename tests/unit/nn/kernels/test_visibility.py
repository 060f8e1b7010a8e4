"""The kernel that draws what rows of enhanced decoding see says what plain torch says, to the bit.

Without a GPU it runs in Triton's interpreter, where Triton is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from isthmus.nn.kernels import available as kernels
from isthmus.pretraining.decoders import VISIBILITY_STREAM, visibility

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Arguments = tuple[Tensor, Tensor, Tensor]


@pytest.fixture
def drawn(triton: Any) -> Callable[..., Tensor]:
    """What the kernel draws, wherever it can run."""
    from isthmus.nn.kernels.visibility_triton import draw_visibility

    return partial(draw_visibility, stream=VISIBILITY_STREAM)


def batch(texts: int, length: int, seed: int = 0) -> Arguments:
    """Keys of all signs, words of several tokens and none, texts of any length."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randint(-(2**63), 2**63 - 1, (texts,), generator=generator)
    words = (torch.rand(texts, length, generator=generator) < 0.7).cumsum(1) - 1
    words[torch.rand(texts, length, generator=generator) < 0.1] = -1
    lengths = torch.randint(1, length + 1, (texts, 1), generator=generator)
    lengths[0] = length
    return keys, words.clamp(max=length - 1), torch.arange(length) < lengths


@pytest.mark.parametrize("rate", [0.5, 0.05, 0.999999])
@pytest.mark.parametrize(
    ("texts", "length"), [(1, 1), (3, 2), (2, 31), (3, 37), (2, 130), (1, 144)]
)
def test_every_bit(drawn: Callable[..., Tensor], texts: int, length: int, rate: float) -> None:
    given = batch(texts, length)
    hidden = min(round(rate * 2**16), 2**16 - 1)
    found = drawn(*(part.to(DEVICE) for part in given), hidden=hidden)
    assert found.dtype == torch.bool
    assert found.is_contiguous()
    assert torch.equal(found.cpu(), visibility(*given, rate))


def test_padding_changes_nothing(drawn: Callable[..., Tensor]) -> None:
    keys, words, attended = batch(3, 37)
    wide = (pad(words, (0, 98), value=-1), pad(attended, (0, 98), value=False))
    narrow = drawn(*(part.to(DEVICE) for part in (keys, words, attended)), hidden=2**15)
    found = drawn(*(part.to(DEVICE) for part in (keys, *wide)), hidden=2**15)
    assert torch.equal(found[:, :37, :37], narrow)
    assert not found[:, :, 37:].any()


def test_views_are_read_as_what_they_show(drawn: Callable[..., Tensor]) -> None:
    given = [part.to(DEVICE) for part in batch(6, 37)]
    found = drawn(*(part[::2] for part in given), hidden=2**15)
    assert torch.equal(found, drawn(*given, hidden=2**15)[::2])


def test_no_texts(drawn: Callable[..., Tensor]) -> None:
    given = [part[:0].to(DEVICE) for part in batch(1, 5)]
    assert drawn(*given, hidden=2**15).shape == (0, 5, 5)


@pytest.mark.skipif(DEVICE == "cpu", reason="there is no GPU here")
def test_a_gpu_takes_the_kernel_and_is_not_asked_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    from isthmus.nn.kernels import visibility_triton

    calls: list[int] = []
    draw = visibility_triton.draw_visibility

    def noted(*given: Any) -> Tensor:
        calls.append(1)
        return draw(*given)

    monkeypatch.setattr(visibility_triton, "draw_visibility", noted)
    keys, words, attended = (part.to(DEVICE) for part in batch(4, 130))
    visibility(keys, words, attended, 0.5)
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours = visibility(keys, words, attended, 0.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(calls) == 2
    monkeypatch.setattr(kernels, "KERNELS", False)
    assert torch.equal(ours, visibility(keys, words, attended, 0.5))
    assert len(calls) == 2
