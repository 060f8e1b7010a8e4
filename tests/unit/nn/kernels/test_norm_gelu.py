"""What lies between the products of a layer: as a GPU's kernels compute it, against float64.

Without a GPU the kernels run in Triton's interpreter, where Triton is installed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.nn.kernels import norm_gelu
from isthmus.nn.kernels.norm_gelu import bias_gelu, drop_add_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, WIDTH = 21, 40  # no multiple of what a program takes at a time


@pytest.fixture
def kernels(triton: Any) -> Any:
    """The module of kernels, wherever they can run."""
    from isthmus.nn.kernels import norm_gelu_triton

    return norm_gelu_triton


@pytest.fixture(params=["plain", "kernels"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who computes."""
    name: str = request.param
    if name == "kernels":
        request.getfixturevalue("kernels")
    monkeypatch.setattr(norm_gelu, "has_kernels", lambda states: name == "kernels")
    return name


def numbers(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return drawn.to(dtype).to(DEVICE).requires_grad_()


def a_norm(width: int = WIDTH) -> nn.LayerNorm:
    norm = nn.LayerNorm(width, eps=1e-5).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(numbers(width, seed=8))
        norm.bias.copy_(numbers(width, seed=9))
    return norm


def gradients(of: Tensor, *inputs: Tensor) -> list[Tensor]:
    return [each.double().cpu() for each in torch.autograd.grad(of, inputs)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(ROWS, WIDTH), (3, 64), (8, 384)])
def test_norm(way: str, dtype: torch.dtype, rows: int, width: int) -> None:
    states, residual = (numbers(3, rows, width, seed=seed, dtype=dtype) for seed in (1, 2))
    bias, norm = numbers(width, seed=3), a_norm(width)
    one, two = (numbers(3, rows, width, seed=seed) for seed in (4, 5))
    wanted_inputs = states, bias, residual, norm.weight, norm.bias
    exact = [each.detach().double().cpu().requires_grad_() for each in wanted_inputs]
    summed = exact[2] + exact[0] + exact[1]
    wanted = functional.layer_norm(summed, (width,), exact[3], exact[4], norm.eps)
    weighed = (wanted * (one + two).double().cpu()).sum()
    normed, again = drop_add_norm(states, bias, residual, norm, 0.0)
    found = (normed * one + again * two).sum()
    assert normed.dtype == again.dtype
    loose = {torch.float32: 2e-5, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(normed.double().cpu(), wanted, atol=loose, rtol=loose)
    for name, ours, theirs in zip(
        ("states", "bias", "residual", "weight", "offset"),
        gradients(found, *wanted_inputs),
        torch.autograd.grad(weighed, exact),
        strict=True,
    ):
        off = (ours - theirs).norm() / theirs.norm()
        assert off < loose / 2, (name, off)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_a_way_back(way: str, mode: Any, after: bool) -> None:
    states, residual = (numbers(ROWS, WIDTH, seed=seed, dtype=torch.bfloat16) for seed in (1, 2))
    bias, norm = numbers(WIDTH, seed=3), a_norm()
    wanted = drop_add_norm(states, bias, residual, norm, 0.0, after=after)
    active = bias_gelu(states, bias)
    with mode():
        found = drop_add_norm(states, bias, residual, norm, 0.0, after=after)
        assert torch.equal(bias_gelu(states, bias), active)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs)
        assert not ours.requires_grad


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_drops(way: str, rate: float) -> None:
    """The states alone, as often as asked, scaled up, and the same ones on the way back."""
    torch.manual_seed(4)
    rows, width = 400, 64
    norm = nn.LayerNorm(width, elementwise_affine=True).to(DEVICE)
    # Rows of mean 0 and deviation 1 but for what is added: what is dropped can be told.
    residual = torch.zeros(rows, width, device=DEVICE, requires_grad=True)
    states = numbers(rows, width, seed=1)
    bias = numbers(width, seed=3)
    normed, _ = drop_add_norm(states, bias, residual, norm, rate)
    # A dropped number is 0 before the norm, so that all dropped ones of a row are equal after it.
    for_states, for_residual, for_bias = torch.autograd.grad(
        normed, (states, residual, bias), numbers(rows, width, seed=6)
    )
    kept = for_states != 0
    assert abs(kept.double().mean().item() - (1 - rate)) < 0.01
    # In every row and column, not only on the whole.
    assert (kept.double().mean(0) - (1 - rate)).abs().max() < 0.13
    assert kept.any(1).all()
    scale = for_states[kept] / for_residual[kept]
    torch.testing.assert_close(scale, torch.full_like(scale, 1 / (1 - rate)), rtol=1e-4, atol=0)
    torch.testing.assert_close(for_bias, for_states.sum(0), rtol=1e-4, atol=1e-4)
    summed = torch.where(kept, (states + bias) / (1 - rate), 0).detach()
    wanted = functional.layer_norm(summed, (width,))
    torch.testing.assert_close(normed, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(ROWS, WIDTH), (3, 300), (70, 256)])
def test_gelu(way: str, dtype: torch.dtype, rows: int, width: int) -> None:
    states, bias = numbers(rows, width, seed=1, dtype=dtype), numbers(width, seed=3)
    with torch.no_grad():
        states *= 3
    upstream = numbers(rows, width, seed=2)
    exact = [each.detach().double().cpu().requires_grad_() for each in (states, bias)]
    wanted = functional.gelu(exact[0] + exact[1])
    active = bias_gelu(states, bias)
    loose = {torch.float32: 2e-6, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(active.double().cpu(), wanted, atol=loose, rtol=loose)
    found = gradients((active * upstream).sum(), states, bias)
    theirs = torch.autograd.grad((wanted * upstream.double().cpu()).sum(), exact)
    for ours, other in zip(found, theirs, strict=True):
        torch.testing.assert_close(ours, other, atol=10 * loose, rtol=loose)
