"""Queries, keys and values by one product, as a GPU's kernel puts their gradients together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.nn.kernels.bert_layer import Joined, project, project_whole
from isthmus.nn.numerics import rounded

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
    from isthmus.nn.kernels import norm_gelu_triton

    return norm_gelu_triton


@pytest.fixture(params=["plain", "kernels"])
def way(request: pytest.FixtureRequest) -> str:
    """Who computes."""
    name: str = request.param
    if name == "kernels":
        request.getfixturevalue("kernels")
    return name


def joined_of(parts: tuple[nn.Linear, ...], dtype: torch.dtype = torch.float32) -> Joined:
    weights, biases = [part.weight for part in parts], [part.bias for part in parts]
    return Joined(torch.cat(weights).detach().to(dtype), torch.cat(biases).detach().to(dtype))


def projected(way: str, states: Tensor, parts: tuple[nn.Linear, ...]) -> tuple[Tensor, ...]:
    if way == "plain":
        return project(states, parts, HEADS)
    given = rounded(states)
    return project(given, parts, HEADS, joined_of(parts, given.dtype))


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
    upstream = [
        LAYOUTS[layout](numbers(TEXTS, HEADS, ROWS, SIZE, seed=9 + n)) for n in range(count)
    ]
    wanted = [by_hand(states, part) for part in parts]
    with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
        found = projected(way, states, parts)
    kind, loose = (torch.bfloat16, 1e-2) if autocast else (torch.float32, 1e-5)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == kind
        assert (ours - theirs).norm() < loose * theirs.norm()
    # Rounded as a copy of the same layout.
    back = [gradient.to(kind) for gradient in upstream]
    pairs = zip(
        torch.autograd.grad(found, given, back),
        torch.autograd.grad(wanted, given, upstream),
        strict=True,
    )
    for one, other in pairs:
        assert one.dtype == torch.float32
        assert (one - other).norm() < loose * other.norm()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_a_way_back(way: str, mode: Any) -> None:
    states, parts = made(3)
    with mode():
        for ours, part in zip(projected(way, states, parts), parts, strict=True):
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


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_as_a_whole(count: int, kind: torch.dtype) -> None:
    """The product has the bias, whose gradient is left to who takes it."""
    _, parts = made(count)
    states = numbers(ROWS, WIDTH, seed=1).to(kind).requires_grad_()
    found, bias = project_whole(states[None], parts, HEADS, joined_of(parts, kind))
    assert found.shape == (ROWS, count, HEADS, SIZE)
    assert bias.requires_grad
    exact = states.detach().float().requires_grad_()
    wanted = torch.stack(
        [
            functional.linear(exact, part.weight, part.bias).view(ROWS, HEADS, SIZE)
            for part in parts
        ],
        1,
    )
    loose = 1e-5 if kind == torch.float32 else 2e-2
    assert (found.float() - wanted).norm() < loose * wanted.norm()
    upstream = numbers(*found.shape, seed=3)
    weights = [part.weight for part in parts]
    ours = torch.autograd.grad(found, [states, *weights], upstream.to(kind), retain_graph=True)
    theirs = torch.autograd.grad(wanted, [exact, *weights], upstream)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.float() - other).norm() < loose * other.norm()
    assert all(one.dtype == torch.float32 for one in ours[1:])
    biases = [part.bias for part in parts]
    unused = torch.autograd.grad(found, biases, upstream.to(kind), allow_unused=True)
    assert unused == (None,) * count
