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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("added", ["nothing", "bias", "residual", "both"])
@pytest.mark.parametrize("around", [False, True])
def test_norm_of_less(way: str, dtype: torch.dtype, added: str, around: bool) -> None:
    """Without a bias or a residual, and with what was normed as a second result."""
    states, residual = (numbers(3, ROWS, WIDTH, seed=seed, dtype=dtype) for seed in (1, 2))
    norm, bias = a_norm(), numbers(WIDTH, seed=3)
    given = [states, norm.weight, norm.bias]
    given += [bias] * (added in ("bias", "both")) + [residual] * (added in ("residual", "both"))
    exact = [each.detach().double().cpu().requires_grad_() for each in given]
    summed = sum(exact[3:], exact[0])
    wanted = functional.layer_norm(summed, (WIDTH,), exact[1], exact[2], norm.eps)
    one, two = (numbers(3, ROWS, WIDTH, seed=seed) for seed in (4, 5))
    weighed = wanted * one.double().cpu() + (summed if around else wanted) * two.double().cpu()
    normed, second = drop_add_norm(
        states,
        bias if added in ("bias", "both") else None,
        residual if added in ("residual", "both") else None,
        norm,
        0.0,
        around=around,
    )
    loose = {torch.float32: 2e-5, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(normed.double().cpu(), wanted, atol=loose, rtol=loose)
    if around:
        assert second.dtype == dtype
        torch.testing.assert_close(second.double().cpu(), summed, atol=loose, rtol=loose)
    found = gradients((normed * one + second * two).sum(), *given)
    for ours, theirs in zip(found, torch.autograd.grad(weighed.sum(), exact), strict=True):
        assert (ours - theirs).norm() < loose / 2 * theirs.norm()


@pytest.mark.parametrize("which", [0, 1])
def test_one_of_a_norm_and_what_goes_around_it(way: str, which: int) -> None:
    states, residual = (numbers(ROWS, WIDTH, seed=seed) for seed in (1, 2))
    bias, norm, upstream = numbers(WIDTH, seed=3), a_norm(), numbers(ROWS, WIDTH, seed=4)
    found = drop_add_norm(states, bias, residual, norm, 0.0, around=True)[which]
    summed = states + bias + residual
    wanted = norm(summed) if which == 0 else summed
    given = states, bias, residual
    ours, theirs = (gradients((each * upstream).sum(), *given) for each in (found, wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_one_user(way: str) -> None:
    """Only one of the two results is used."""
    states, residual = (numbers(ROWS, WIDTH, seed=seed) for seed in (1, 2))
    bias, norm, upstream = numbers(WIDTH, seed=3), a_norm(), numbers(ROWS, WIDTH, seed=4)
    found = [
        gradients(
            (drop_add_norm(states, bias, residual, norm, 0.0)[which] * upstream).sum(), states
        )
        for which in (0, 1)
    ]
    torch.testing.assert_close(found[0], found[1])


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


def test_nothing_is_kept_without_a_way_back(kernels: Any) -> None:
    states, norm = numbers(ROWS, WIDTH, seed=1).detach(), a_norm()
    draw = kernels.Draw(None, 0)
    given = states, states[0], states, norm.weight, norm.bias, norm.eps, draw, torch.float32
    assert kernels.norm_forward(*given, back=False)[1:] == (None, None)


def test_rows_too_wide_for_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm_gelu, "has_kernels", lambda states: True)
    monkeypatch.setattr(norm_gelu, "_WIDEST", WIDTH - 1)
    states, norm = numbers(ROWS, WIDTH, seed=1), a_norm()
    found, _ = drop_add_norm(states, states[0] * 0, states, norm, 0.0)
    torch.testing.assert_close(found, norm(2 * states))


@pytest.mark.parametrize("seed", [0, 1, 2**31 + 5, 2**32, 2**63 - 1])
def test_any_seed(kernels: Any, seed: int) -> None:
    """The same numbers are dropped on the way back."""
    states, norm = numbers(ROWS, WIDTH, seed=1).detach(), nn.LayerNorm(WIDTH).to(DEVICE)
    draw = kernels.Draw(torch.tensor([seed], device=DEVICE), 2**30)
    given = states, states[0] * 0, states * 0, norm.weight, norm.bias, 1e-5, draw
    _, summed, moments = kernels.norm_forward(*given, torch.float32)
    upstream = numbers(ROWS, WIDTH, seed=2).detach()
    back = upstream, None, summed, moments, norm.weight, draw, torch.float32
    for_states, for_residual, _ = kernels.norm_backward(*back)
    assert torch.equal(for_states != 0, summed != 0)
    assert 0.3 < (summed != 0).double().mean() < 0.7
    assert (for_residual != 0).all()


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


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_drops_after_the_norm(way: str, rate: float) -> None:
    torch.manual_seed(4)
    states, residual, upstream = (numbers(ROWS, WIDTH, seed=seed) for seed in (1, 2, 3))
    bias, norm = numbers(WIDTH, seed=4), a_norm()
    given = states, bias, residual, norm.weight, norm.bias
    found, _ = drop_add_norm(states, bias, residual, norm, rate, after=True)
    kept = found.detach() != 0
    assert abs(kept.double().mean().item() - (1 - rate)) < 0.05
    wanted = torch.where(kept, norm(states + bias + residual) / (1 - rate), 0)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    ours, theirs = (gradients((each * upstream).sum(), *given) for each in (found, wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_no_rows(way: str) -> None:
    states, residual = (numbers(0, WIDTH, seed=seed) for seed in (1, 2))
    bias, norm = numbers(WIDTH, seed=3), a_norm()
    normed, _ = drop_add_norm(states, bias, residual, norm, 0.1)
    active = bias_gelu(states, bias)
    given = states, bias, residual, norm.weight, norm.bias
    found = torch.autograd.grad(normed.sum() + active.sum(), given)
    assert [gradient.shape for gradient in found] == [each.shape for each in given]
    assert not any(gradient.any() for gradient in found)


def test_draws_differ(way: str) -> None:
    """From one call to the next, and are the same behind the same seed."""
    states = numbers(64, 64, seed=1)
    norm = nn.LayerNorm(64).to(DEVICE)

    def called() -> Tensor:
        normed, _ = drop_add_norm(states, states[0].detach() * 0, states * 0, norm, 0.5)
        return torch.autograd.grad(normed.square().sum(), states)[0]

    torch.manual_seed(3)
    first, second = called(), called()
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(called(), first)


def test_result_in_another_type(way: str) -> None:
    states = numbers(ROWS, WIDTH, seed=1, dtype=torch.bfloat16)
    normed, _ = drop_add_norm(
        states, states[0].float(), states, a_norm().bfloat16(), 0.0, torch.float32
    )
    assert normed.dtype == torch.float32


TUNINGS: list[dict[str, Any]] = [
    {"norm_stages": 1, "norm_warps": 16},
    {"sum_columns": 4},
    {"join_rows": 4, "join_columns": 16, "join_stages": 3, "join_programs": 9},
    {"rows": 4, "columns": 32, "stages": 3, "gelu_programs": 2},
]


@pytest.mark.parametrize("changed", TUNINGS, ids=str)
@pytest.mark.parametrize(("rows", "width"), [(ROWS, WIDTH), (5, 20), (3, 4)])
def test_other_tunings(
    kernels: Any, changed: dict[str, Any], rows: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Come to the same, and drop the same numbers."""
    monkeypatch.setattr(norm_gelu, "has_kernels", lambda states: True)
    states, residual, one, two = (numbers(rows, width, seed=seed) for seed in range(1, 5))
    bias, norm = numbers(width, seed=5), a_norm(width)
    parts = [numbers(1, 2, rows, width // 2, seed=seed).detach() for seed in (6, 7, 8)]

    def called() -> list[Tensor]:
        torch.manual_seed(3)
        normed, again = drop_add_norm(states, bias, residual, norm, 0.3)
        inputs = states, bias, residual, norm.weight, norm.bias
        back = torch.autograd.grad((normed * one + again * two).sum(), inputs)
        active = bias_gelu(states, bias)
        found = normed, *back, active, *torch.autograd.grad((active * one).sum(), (states, bias))
        return [*found, *kernels.join(parts)]

    wanted = called()
    monkeypatch.setattr(kernels, "TUNING", kernels.TUNING._replace(**changed))
    found = called()
    assert torch.equal(found[1] == 0, wanted[1] == 0)
    assert (found[1] == 0).any()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


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


def test_gelu_far_out(kernels: Any) -> None:
    """Where almost all or nothing passes, what is left is not lost in rounding."""
    values = torch.tensor([-9.0, -5.0, -3.0, -1e-3, 0.0, 1e-3, 3.0, 5.0, 9.0], device=DEVICE)
    nothing = torch.zeros(1, device=DEVICE)
    found = kernels.gelu_forward(values[:, None].contiguous(), nothing)[:, 0]
    wanted = functional.gelu(values.double()).float()
    torch.testing.assert_close(found, wanted, atol=5e-7, rtol=1e-5)
    assert abs(found[1] / wanted[1] - 1) < 1e-2
