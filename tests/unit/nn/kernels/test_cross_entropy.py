"""The gradients of the cross-entropy as a GPU's kernel computes them, in place of the logits.

Without a GPU the kernel runs in Triton's interpreter, where Triton is installed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor

from isthmus.nn import losses
from isthmus.nn.heads import Prediction
from isthmus.nn.kernels import available as switch
from isthmus.nn.losses import IGNORED

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture
def kernels(triton: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of kernels, wherever they can run; in tiles so small that a row has several."""
    from isthmus.nn.kernels import cross_entropy_triton

    small = True, cross_entropy_triton.Sweep(columns=256, warps=1)
    for function in (
        cross_entropy_triton.replace_by_gradients,
        cross_entropy_triton.replace_by_bag_gradients,
    ):
        monkeypatch.setattr(function, "__defaults__", small)
    return cross_entropy_triton


def drawn(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows + columns)
    logits = 3 * torch.randn(rows, columns, generator=generator)
    targets = torch.randint(columns, (rows,), generator=generator)
    return logits.to(DEVICE, dtype), targets.to(DEVICE)


def by_hand(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and gradients in float64; the target's gradient as what the others have."""
    exact, chosen = logits.double().cpu(), targets.cpu().clamp(min=0)[:, None]
    counts = targets.cpu()[:, None] != IGNORED
    shares = exact.softmax(1)
    others = exact.scatter(1, chosen, -torch.inf).logsumexp(1, keepdim=True)
    gradients = shares.scatter(1, chosen, -(others - exact.logsumexp(1, keepdim=True)).exp())
    losses = -exact.log_softmax(1).gather(1, chosen)
    return losses.where(counts, 0)[:, 0], gradients.where(counts, 0)


def replaced(kernels: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    changed = logits.clone()
    losses = kernels.replace_by_gradients(changed, targets)
    assert losses.dtype == torch.float32
    assert changed.dtype == logits.dtype
    return losses.double().cpu(), changed.double().cpu()


def rounding(dtype: torch.dtype) -> dict[str, float]:
    """Half a unit in the last place, of numbers that were exact to 1e-5 before."""
    kind = torch.finfo(dtype)
    # Triton's interpreter cuts off what bf16 has no room for.
    unit = kind.eps if dtype == torch.bfloat16 and not ON_GPU else kind.eps / 2
    least = max(kind.smallest_normal * kind.eps, torch.finfo(torch.float32).smallest_normal)
    return {"rtol": unit + 1e-5, "atol": least}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("columns", [8, 104, 256, 264, 512, 1000, 3000])
def test_losses_and_slopes(kernels: Any, columns: int, dtype: torch.dtype) -> None:
    logits, targets = drawn(7, columns, dtype)
    targets[0], targets[1] = 0, columns - 1
    losses, gradients = replaced(kernels, logits, targets)
    expected, truth = by_hand(logits, targets)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients, truth, **rounding(dtype))


@pytest.mark.parametrize("columns", [104, 600])
def test_rows_without_a_target(kernels: Any, columns: int) -> None:
    logits, targets = drawn(6, columns)
    targets[[0, 3, 5]] = IGNORED
    logits[3] = torch.nan  # whatever stands there
    losses, gradients = replaced(kernels, logits, targets)
    expected, truth = by_hand(logits, targets)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients, truth, **rounding(logits.dtype))
    assert not losses[[0, 3, 5]].any()
    assert not gradients[[0, 3, 5]].any()


def test_only_losses_where_no_slopes_are_wanted(kernels: Any) -> None:
    logits, targets = drawn(6, 600)
    targets[2] = IGNORED
    before = logits.clone()
    losses = kernels.replace_by_gradients(logits, targets, write=False)
    torch.testing.assert_close(losses.double().cpu(), by_hand(logits, targets)[0])
    assert torch.equal(logits, before)


def test_terms_that_are_never_predicted(kernels: Any) -> None:
    """All that one thread sees, all of a tile, all but the target, and the target itself."""
    logits, targets = drawn(5, 600)
    logits[0, 592:] = logits[1, 256:512] = logits[1, :8] = -torch.inf
    targets[0], targets[1] = 300, 8
    logits[0, 300] = 1.0
    logits[2] = -torch.inf
    logits[2, targets[2]] = -5.0
    logits[3, targets[3]] = -torch.inf
    losses, gradients = replaced(kernels, logits, targets)
    expected, truth = by_hand(logits, targets)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients, truth, **rounding(logits.dtype))
    assert not gradients[logits.cpu().isneginf() & (truth == 0)].any()
    assert not gradients[2].any()
    assert losses[2] == 0
    assert losses[3] == torch.inf
    assert gradients[3, targets[3]] == -1


def test_a_sure_model_still_has_a_slope(kernels: Any) -> None:
    logits = torch.zeros(4, 600, device=DEVICE, dtype=torch.bfloat16)
    targets = torch.tensor([0, 5, 300, 599], device=DEVICE)
    logits[torch.arange(4), targets] = torch.tensor([10.0, 20.0, 40.0, 80.0]).to(logits)
    losses, gradients = replaced(kernels, logits, targets)
    expected, truth = by_hand(logits, targets)
    own = gradients.gather(1, targets.cpu()[:, None])
    assert (own < 0).all()
    torch.testing.assert_close(gradients, truth, **rounding(logits.dtype))
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)


def test_large_logits_do_not_overflow(kernels: Any) -> None:
    logits, targets = drawn(3, 600)
    logits[0] += 30_000
    logits[1] -= 30_000
    logits[2] *= 1000
    losses, gradients = replaced(kernels, logits, targets)
    expected, truth = by_hand(logits, targets)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients, truth, **rounding(logits.dtype))


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_broken_is_seen_in_its_row_alone(kernels: Any, broken: float) -> None:
    logits, targets = drawn(4, 600)
    logits[1, 299] = logits[2, targets[2]] = broken
    losses, gradients = replaced(kernels, logits, targets)
    assert losses.isnan().tolist() == [False, True, True, False]
    assert gradients.isnan().all(1).tolist() == [False, True, True, False]
    assert not gradients[[0, 3]].isnan().any()


def test_a_target_outside_the_vocabulary_is_no_number(kernels: Any) -> None:
    logits, targets = drawn(4, 600)
    targets[1:] = torch.tensor([600, -1, 1 << 32])
    losses, gradients = replaced(kernels, logits, targets)
    assert losses.isnan().tolist() == [False, True, True, True]
    assert gradients.isnan().all(1).tolist() == [False, True, True, True]


def test_no_rows(kernels: Any) -> None:
    logits, targets = drawn(0, 16)
    assert kernels.replace_by_gradients(logits, targets).shape == (0,)


def bagged(rows: int, terms: int) -> tuple[Tensor, Tensor]:
    """Bags of any size: of no term, of one, of all; and their sizes."""
    generator = torch.Generator().manual_seed(rows + terms)
    bags = torch.rand(rows, terms, generator=generator) < torch.rand(rows, 1, generator=generator)
    bags[1::7], bags[2::7], bags[3::7] = False, True, False
    bags[3::7, terms - 1] = True
    return bags.to(DEVICE), bags.sum(1).to(DEVICE)


def bags_by_hand(logits: Tensor, bags: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and gradients in float64."""
    exact, counts = logits.double().cpu(), sizes.cpu() > 0
    bags = functional.pad(bags.cpu(), (0, exact.shape[1] - bags.shape[1]))
    each = bags.double() / sizes.cpu().clamp(min=1)[:, None]
    inside = torch.where(bags, exact, 0).sum(1) / sizes.cpu().clamp(min=1)
    losses = (exact.logsumexp(1) - inside).where(counts, 0)
    return losses, (exact.softmax(1) - each).where(counts[:, None], 0)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("columns", "missing"), [(8, 0), (104, 6), (264, 3), (512, 0), (3000, 7)])
def test_losses_and_slopes_of_bags(
    kernels: Any, columns: int, missing: int, dtype: torch.dtype
) -> None:
    logits, _ = drawn(9, columns, dtype)
    logits[:, columns - missing :] = -torch.inf
    logits[1] = torch.nan  # whatever stands there: its bag is empty
    bags, sizes = bagged(9, columns - missing)
    changed, before = logits.clone(), logits.clone()
    losses = kernels.replace_by_bag_gradients(changed, bags, sizes)
    expected, truth = bags_by_hand(logits, bags, sizes)
    torch.testing.assert_close(losses.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    # Differences of numbers of at most 1, exact to 1e-6.
    bounds = {**rounding(dtype), "atol": 1e-6}
    torch.testing.assert_close(changed.double().cpu(), truth, **bounds)
    assert not changed[sizes == 0].any()
    assert not changed[:, columns - missing :].any()
    again = kernels.replace_by_bag_gradients(logits, bags, sizes, write=False)
    assert torch.equal(again, losses)
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)


def test_large_logits_of_bags_do_not_overflow(kernels: Any) -> None:
    logits, _ = drawn(8, 600)
    logits[0] += 30_000
    logits[2] -= 30_000
    logits[4] *= 1000
    bags, sizes = bagged(8, 600)
    expected, truth = bags_by_hand(logits, bags, sizes)
    losses = kernels.replace_by_bag_gradients(logits, bags, sizes)
    torch.testing.assert_close(losses.double().cpu(), expected, rtol=1e-5, atol=0.02)
    bounds = {**rounding(logits.dtype), "atol": 1e-6}
    torch.testing.assert_close(logits.double().cpu(), truth, **bounds)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_broken_is_seen_in_the_row_of_its_bag_alone(kernels: Any, broken: float) -> None:
    logits, _ = drawn(4, 600)
    bags, sizes = bagged(4, 600)
    logits[0, 299] = logits[1, 5] = logits[3, 599] = broken
    losses = kernels.replace_by_bag_gradients(logits, bags, sizes)
    assert losses.isnan().tolist() == [True, False, False, True]
    assert logits.isnan().all(1).tolist() == [True, False, False, True]
    assert not logits[[1, 2]].isnan().any()


def test_no_bags(kernels: Any) -> None:
    logits, targets = drawn(0, 16)
    bags = torch.zeros(0, 16, dtype=torch.bool, device=DEVICE)
    assert kernels.replace_by_bag_gradients(logits, bags, targets).shape == (0,)


def made(tokens: int = 11, terms: int = 300, width: int = 24) -> tuple[Prediction, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = (tokens, width), (terms, width), (terms,)
    numbers = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    targets = torch.randint(terms, (tokens,), generator=generator)
    given = Prediction(*(part.float().to(DEVICE).requires_grad_() for part in numbers))
    return given, targets.to(DEVICE)


@pytest.fixture
def way(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole loss takes the kernel; without a GPU, also products that torch has only there."""
    monkeypatch.setattr(losses, "has_half_kernels", lambda matrix: True)
    monkeypatch.setitem(losses.MULTIPLE, "cpu", 8)
    if not ON_GPU:

        def multiply(left: Tensor, right: Tensor, into: Tensor, add: bool = False) -> None:
            product = left.float() @ right.float()
            into.copy_(into + product if add else product)

        monkeypatch.setattr(losses, "multiply", multiply)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("room", [1, 4 * 304, 10**6], ids=["a row", "four rows", "all"])
@pytest.mark.parametrize("bias", [True, False], ids=["with a bias", "without"])
def test_the_whole_loss(monkeypatch: pytest.MonkeyPatch, room: int, bias: bool) -> None:
    monkeypatch.setitem(losses.AT_ONCE, DEVICE, room)
    given, targets = made()
    if not bias:
        given = given._replace(bias=None)
    targets[[0, 4, 10]] = IGNORED
    with torch.no_grad():
        given.features[4] = torch.nan  # whatever stands there
    kept = targets != IGNORED
    wanted = [tensor for tensor in given if tensor is not None]
    with torch.autocast(DEVICE, torch.bfloat16):
        found = given.cross_entropy(targets)
        with torch.no_grad():
            assert given.cross_entropy(targets).item() == pytest.approx(found.item(), rel=1e-6)
    exact = [tensor.double() for tensor in wanted]
    logits = functional.linear(exact[0][kept], *exact[1:])
    expected = functional.cross_entropy(logits, targets[kept], reduction="sum")
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=1e-2)
    pairs = zip(
        torch.autograd.grad(2 * found, wanted),
        torch.autograd.grad(2 * expected, wanted),
        strict=True,
    )
    for one, other in pairs:
        assert one.dtype == torch.float32
        assert (one - other).norm() < 1e-2 * other.norm()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("room", [1, 4 * 304, 10**6], ids=["a row", "four rows", "all"])
@pytest.mark.parametrize("bias", [True, False], ids=["with a bias", "without"])
def test_the_whole_loss_of_bags(monkeypatch: pytest.MonkeyPatch, room: int, bias: bool) -> None:
    monkeypatch.setitem(losses.AT_ONCE, DEVICE, room)
    given, _ = made(terms=299)
    if not bias:
        given = given._replace(bias=None)
    bags, sizes = bagged(11, 299)
    kept = sizes > 0
    with torch.no_grad():
        given.features[~kept] = torch.nan  # whatever stands there
    wanted = [tensor for tensor in given if tensor is not None]
    with torch.autocast(DEVICE, torch.bfloat16):
        found = given.bag_cross_entropy(bags, sizes)
        with torch.no_grad():
            alone = given.bag_cross_entropy(bags, sizes)
    assert alone.item() == pytest.approx(found.item(), rel=1e-6)
    exact = [tensor.double() for tensor in wanted]
    logits = functional.linear(exact[0][kept], *exact[1:])
    inside = torch.where(bags[kept], logits, 0).sum(1) / sizes[kept]
    expected = (logits.logsumexp(1) - inside).sum()
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=1e-2)
    pairs = zip(
        torch.autograd.grad(2 * found, wanted),
        torch.autograd.grad(2 * expected, wanted),
        strict=True,
    )
    for one, other in pairs:
        assert one.dtype == torch.float32
        assert (one - other).norm() < 1e-2 * other.norm()


@pytest.mark.usefixtures("way")
def test_no_labels_and_no_tokens() -> None:
    for tokens in (0, 5):
        given, targets = made(tokens)
        with torch.autocast(DEVICE, torch.bfloat16):
            nothing = given.cross_entropy(torch.full_like(targets, IGNORED))
        assert nothing.item() == 0
        assert all(not gradient.any() for gradient in torch.autograd.grad(nothing, given))


def test_float64_under_autocast_takes_plain_torch(
    way: None, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "replace_by_gradients", None)
    given, targets = made()
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = given._replace(features=given.features.double()).cross_entropy(targets)
    assert loss.dtype == torch.float64


@pytest.mark.skipif(not ON_GPU, reason="there is no GPU here")
@pytest.mark.parametrize("room", [1000 * 2000, 1 << 29], ids=["three pieces", "one"])
def test_a_gpu_takes_the_kernel_and_is_not_asked_anything(
    kernels: Any, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setitem(losses.AT_ONCE, "cuda", room)
    monkeypatch.setattr(
        kernels.replace_by_gradients, "__defaults__", (True, kernels.SWEEP)
    )  # as it is used
    given, targets = made(5000, 1002, 768)
    given = Prediction(*((tensor / 16).detach().requires_grad_() for tensor in given))
    targets[::7] = IGNORED

    def numbers() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            loss = given.cross_entropy(targets)
        return [loss.detach(), *torch.autograd.grad(loss, given)]

    numbers()  # compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = numbers()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(one, other) for one, other in zip(found, numbers(), strict=True))
    monkeypatch.setattr(switch, "KERNELS", False)
    plain = numbers()
    exact = [tensor.detach().double().requires_grad_() for tensor in given if tensor is not None]
    truth = functional.cross_entropy(functional.linear(*exact), targets, reduction="sum")
    gradients = torch.autograd.grad(truth, exact)
    for one, other, right in zip(found, plain, [truth.detach(), *gradients], strict=True):
        # No further from the truth than plain torch.
        assert (one - right).norm() < 1.2 * (other - right).norm() + 1e-3 * right.norm()


@pytest.mark.skipif(not ON_GPU, reason="there is no GPU here")
@pytest.mark.parametrize("room", [200 * 2008, 1 << 29], ids=["three pieces", "one"])
def test_a_gpu_takes_the_kernel_of_bags_and_is_not_asked_anything(
    kernels: Any, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setitem(losses.AT_ONCE, "cuda", room)
    monkeypatch.setattr(
        kernels.replace_by_bag_gradients, "__defaults__", (True, kernels.SWEEP)
    )  # as it is used
    given, _ = made(500, 2002, 768)
    given = Prediction(*((tensor / 16).detach().requires_grad_() for tensor in given))
    bags, sizes = bagged(500, 2002)

    def numbers() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            loss = given.bag_cross_entropy(bags, sizes)
        return [loss.detach(), *torch.autograd.grad(loss, given)]

    numbers()  # compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = numbers()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(one, other) for one, other in zip(found, numbers(), strict=True))
    monkeypatch.setattr(switch, "KERNELS", False)
    plain = numbers()
    exact = [tensor.detach().double().requires_grad_() for tensor in given if tensor is not None]
    logits = functional.linear(*exact)
    inside = torch.where(bags, logits, 0).sum(1) / sizes.clamp(min=1)
    truth = torch.where(sizes > 0, logits.logsumexp(1) - inside, 0).sum()
    gradients = torch.autograd.grad(truth, exact)
    for one, other, right in zip(found, plain, [truth.detach(), *gradients], strict=True):
        assert (one - right).norm() < 1.2 * (other - right).norm() + 1e-3 * right.norm()


@pytest.mark.skipif(not ON_GPU, reason="there is no GPU here")
def test_more_logits_than_32_bits_count(kernels: Any) -> None:
    rows, columns = 8600, 250_008
    if torch.cuda.mem_get_info()[0] < 10 << 30:
        pytest.skip("too little memory is free for 2.15 billion logits")
    logits = torch.zeros(rows, columns, device="cuda", dtype=torch.bfloat16)
    targets = torch.zeros(rows, device="cuda", dtype=torch.long)
    targets[-1] = columns - 1
    logits[-1, -1] = 20.0
    losses = kernels.replace_by_gradients(logits, targets, sweep=kernels.SWEEP)
    expected, gradients = by_hand(
        torch.zeros(1, columns).index_fill(1, torch.tensor([columns - 1]), 20.0), targets[-1:]
    )
    torch.testing.assert_close(losses[-1:].double().cpu(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits[-1:].double().cpu(), gradients, **rounding(logits.dtype))
