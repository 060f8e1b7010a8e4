"""Queries, keys and values by one product, as a GPU's kernel puts their gradients together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.nn import projection
from isthmus.nn.projection import project

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TEXTS, ROWS, HEADS, SIZE = 3, 7, 5, 8
WIDTH = HEADS * SIZE
# How attention may leave gradients [texts, heads, rows, size] in memory.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "head by head": lambda part: part.contiguous(),
    "row by row": lambda part: part.transpose(1, 2).contiguous().transpose(1, 2),
    "turned": lambda part: part.transpose(2, 3).contiguous().transpose(2, 3),
    "one number": lambda part: part[:1, :1, :1, :1].expand_as(part),
}


@pytest.fixture
def kernels(triton: Any) -> Any:
    """The module of kernels, wherever they can run."""
    from isthmus.nn import fused_kernels

    return fused_kernels


@pytest.fixture(params=["plain", "kernels"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who computes."""
    name: str = request.param
    if name == "kernels":
        request.getfixturevalue("kernels")
    monkeypatch.setattr(projection, "has_kernels", lambda states: name == "kernels")
    return name


def numbers(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE)


def made(count: int) -> tuple[Tensor, tuple[nn.Linear, ...]]:
    torch.manual_seed(count)
    parts = tuple(nn.Linear(WIDTH, WIDTH).to(DEVICE) for _ in range(count))
    return numbers(TEXTS, ROWS, WIDTH, seed=1).requires_grad_(), parts


def by_hand(states: Tensor, part: nn.Linear) -> Tensor:
    found = functional.linear(states, part.weight, part.bias)
    return found.view(*states.shape[:2], HEADS, SIZE).transpose(1, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_results_and_gradients(way: str, layout: str, count: int, autocast: bool) -> None:
    states, parts = made(count)
    given = [states, *(each for part in parts for each in part.parameters())]
    slopes = [LAYOUTS[layout](numbers(TEXTS, HEADS, ROWS, SIZE, seed=9 + n)) for n in range(count)]
    wanted = [by_hand(states, part) for part in parts]
    with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
        found = project(states, parts, HEADS)
    kind, loose = (torch.bfloat16, 1e-2) if autocast else (torch.float32, 1e-5)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == kind
        assert (ours - theirs).norm() < loose * theirs.norm()
    # Rounded as a copy of the same layout.
    back = [slope.to(kind) for slope in slopes]
    pairs = zip(
        torch.autograd.grad(found, given, back),
        torch.autograd.grad(wanted, given, slopes),
        strict=True,
    )
    for one, other in pairs:
        assert one.dtype == torch.float32
        assert (one - other).norm() < loose * other.norm()


def test_each_layout_of_its_own(way: str) -> None:
    states, parts = made(3)
    slopes = [
        as_laid(numbers(TEXTS, HEADS, ROWS, SIZE, seed=n))
        for n, as_laid in enumerate(list(LAYOUTS.values())[:3])
    ]
    given = [states, *(each for part in parts for each in part.parameters())]
    found = torch.autograd.grad(project(states, parts, HEADS), given, slopes)
    wanted = torch.autograd.grad([by_hand(states, part) for part in parts], given, slopes)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_one_result_is_used(way: str) -> None:
    states, parts = made(3)
    given = states, parts[1].weight, parts[1].bias
    slopes = numbers(TEXTS, HEADS, ROWS, SIZE, seed=2)
    found = torch.autograd.grad(project(states, parts, HEADS)[1], given, slopes)
    wanted = torch.autograd.grad(by_hand(states, parts[1]), given, slopes)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_frozen_matrices(way: str) -> None:
    states, parts = made(2)
    for part in parts:
        part.requires_grad_(False)
    slopes = [numbers(TEXTS, HEADS, ROWS, SIZE, seed=n) for n in range(2)]
    [found] = torch.autograd.grad(project(states, parts, HEADS), states, slopes)
    [wanted] = torch.autograd.grad([by_hand(states, part) for part in parts], states, slopes)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_a_way_back(way: str, mode: Any) -> None:
    states, parts = made(3)
    with mode():
        for ours, part in zip(project(states, parts, HEADS), parts, strict=True):
            assert not ours.requires_grad
            torch.testing.assert_close(ours, by_hand(states, part))


@pytest.mark.parametrize("shape", [(2, 12, 9, 64), (1, 3, 70, 128), (1, 2, 0, 16)])
@pytest.mark.parametrize("count", [2, 3])
def test_joined(kernels: Any, shape: tuple[int, ...], count: int) -> None:
    """More rows and columns than a program takes at a time, and no rows."""
    parts = [
        LAYOUTS["row by row"](numbers(*shape, seed=number)).bfloat16() for number in range(count)
    ]
    joined, sums = kernels.join(parts)
    wanted = torch.cat([part.transpose(1, 2).flatten(2) for part in parts], 2).flatten(0, 1)
    assert torch.equal(joined, wanted)
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums, wanted.float().sum(0), rtol=1e-5, atol=1e-5)
