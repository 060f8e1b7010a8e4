"""The loss that holds few logits: the value and the gradients of the one that holds them all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as functional
from tests.golden.loops import log_softmax, numerical_gradient
from torch import Tensor

from isthmus.nn import losses
from isthmus.nn.backbone import Backbone
from isthmus.nn.heads import Prediction
from isthmus.nn.losses import IGNORED, aligned

TERMS, WIDTH, TOKENS = 37, 6, 11


def made(dtype: torch.dtype = torch.float64, tokens: int = TOKENS) -> tuple[Prediction, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((tokens, WIDTH), (TERMS, WIDTH), (TERMS,))
    parts = (2 * torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    inputs = Prediction(*(part.requires_grad_() for part in parts))
    return inputs, torch.randint(TERMS, (tokens,), generator=generator)


def plain(given: Prediction, targets: Tensor) -> Tensor:
    bias = 0 if given.bias is None else given.bias
    logits = given.features @ given.matrix.T + bias
    return functional.cross_entropy(logits, targets, reduction="sum")


@pytest.fixture(params=[1, 8], ids=["as it is", "aligned"])
def alignment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses.MULTIPLE, "cpu", request.param)


@pytest.mark.usefixtures("alignment")
@pytest.mark.parametrize("room", [1, 3 * TERMS, 10**6])
def test_value_and_gradients(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setitem(losses.AT_ONCE, "cpu", room)
    given, targets = made()
    # Two losses share the matrix, each with a weight of its own, as objectives do.
    found = 0.3 * given.cross_entropy(targets) + 2 * given.cross_entropy(targets.flip(0))
    expected = 0.3 * plain(given, targets) + 2 * plain(given, targets.flip(0))
    torch.testing.assert_close(found, expected)
    pairs = zip(
        torch.autograd.grad(found, given), torch.autograd.grad(expected, given), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(given.logits(), given.features @ given.matrix.T + given.bias)
    assert torch.equal(given.most_likely(), given.logits().argmax(1))


@pytest.mark.usefixtures("alignment")
def test_without_bias_and_with_frozen_parts() -> None:
    given, targets = made()
    bare = given._replace(bias=None, matrix=given.matrix.detach())
    found, expected = bare.cross_entropy(targets), plain(bare, targets)
    torch.testing.assert_close(found, expected)
    (one,) = torch.autograd.grad(found, given.features)
    (other,) = torch.autograd.grad(expected, given.features)
    torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("alignment")
@pytest.mark.parametrize("room", [1, 3 * TERMS, 10**6])
@pytest.mark.parametrize("bias", [True, False], ids=["with a bias", "without"])
def test_targets_without_weight(monkeypatch: pytest.MonkeyPatch, room: int, bias: bool) -> None:
    monkeypatch.setitem(losses.AT_ONCE, "cpu", room)
    given, targets = made()
    if not bias:
        given = given._replace(bias=None)
    ignored = torch.tensor([1, 4, 5, 6, 10])
    targets[ignored] = IGNORED
    with torch.no_grad():
        given.features[ignored[0]] = torch.nan  # whatever stands there
    kept = targets != IGNORED
    wanted = [tensor for tensor in given if tensor is not None]
    found = given.cross_entropy(targets)
    expected = plain(given._replace(features=given.features[kept]), targets[kept])
    torch.testing.assert_close(found, expected)
    pairs = zip(
        torch.autograd.grad(found, wanted), torch.autograd.grad(expected, wanted), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other)
    nothing = given.cross_entropy(torch.full_like(targets, IGNORED))
    assert nothing.item() == 0
    assert all(not gradient.any() for gradient in torch.autograd.grad(nothing, wanted))


def test_nothing_labelled() -> None:
    given, targets = made(tokens=0)
    loss = given.cross_entropy(targets)
    assert loss.item() == 0
    assert all(not gradient.any() for gradient in torch.autograd.grad(loss, given))


def test_no_gradient_is_computed_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    given, targets = made()
    monkeypatch.setattr(torch, "exp", None)
    with torch.no_grad():
        assert given.cross_entropy(targets).item() == pytest.approx(plain(given, targets).item())


@pytest.mark.usefixtures("alignment")
def test_mixed_precision_sums_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses.AT_ONCE, "cpu", 3 * TERMS)
    given, targets = made(torch.float32, 4000)
    with torch.autocast("cpu", torch.bfloat16):
        found = given.cross_entropy(targets)
        logits = functional.linear(given.features, given.matrix, given.bias)
    expected = functional.cross_entropy(logits.float(), targets, reduction="sum")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    exact = torch.autograd.grad(plain(given, targets), given)
    usual = torch.autograd.grad(expected, given)
    for one, other, truth in zip(torch.autograd.grad(found, given), usual, exact, strict=True):
        assert one.dtype == torch.float32
        # As near to the truth as what torch itself does with these logits.
        assert (one - truth).norm() < 1.2 * (other - truth).norm() + 1e-3 * truth.norm()


def bagged(rows: int = TOKENS) -> tuple[Tensor, Tensor]:
    """Bags of any size: of no term, of one, of all; and their sizes."""
    generator = torch.Generator().manual_seed(3)
    bags = torch.rand(rows, TERMS, generator=generator) < torch.rand(rows, 1, generator=generator)
    bags[1::7], bags[2::7], bags[3::7] = False, True, False
    bags[3::7, TERMS - 1] = True
    return bags, bags.sum(1)


def plain_bags(given: Prediction, bags: Tensor) -> Tensor:
    bias = 0 if given.bias is None else given.bias
    logits = given.features @ given.matrix.T + bias
    total = logits.new_zeros(())
    for row, bag in zip(logits, bags, strict=True):
        if bag.any():
            total = total + row.logsumexp(0) - row[bag].mean()
    return total


@pytest.mark.usefixtures("alignment")
@pytest.mark.parametrize("room", [1, 3 * TERMS, 10**6])
@pytest.mark.parametrize("bias", [True, False], ids=["with a bias", "without"])
def test_bags(monkeypatch: pytest.MonkeyPatch, room: int, bias: bool) -> None:
    monkeypatch.setitem(losses.AT_ONCE, "cpu", room)
    given, targets = made()
    if not bias:
        given = given._replace(bias=None)
    bags, sizes = bagged()
    # The matrix is shared with a loss of the other kind.
    found = 0.3 * given.bag_cross_entropy(bags, sizes) + 2 * given.cross_entropy(targets)
    expected = 0.3 * plain_bags(given, bags) + 2 * plain(given, targets)
    torch.testing.assert_close(found, expected)
    wanted = [tensor for tensor in given if tensor is not None]
    pairs = zip(
        torch.autograd.grad(found, wanted), torch.autograd.grad(expected, wanted), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        alone = given.bag_cross_entropy(bags, sizes)
        torch.testing.assert_close(alone, plain_bags(given, bags))


@pytest.mark.usefixtures("alignment")
@pytest.mark.parametrize("room", [1, 10**6])
def test_empty_bags(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setitem(losses.AT_ONCE, "cpu", room)
    given, _ = made()
    bags, sizes = bagged()
    kept = sizes > 0
    assert not kept.all()
    with torch.no_grad():
        given.features[~kept] = torch.nan  # whatever stands there
    found = given.bag_cross_entropy(bags, sizes)
    expected = plain_bags(given._replace(features=given.features[kept]), bags[kept])
    torch.testing.assert_close(found, expected)
    gradients = torch.autograd.grad(found, given)
    assert not gradients[0][~kept].any()
    for one, other in zip(gradients, torch.autograd.grad(expected, given), strict=True):
        torch.testing.assert_close(one, other)
    for rows in (0, TOKENS):
        given, _ = made(tokens=rows)
        nothing = given.bag_cross_entropy(torch.zeros_like(bags[:rows]), sizes.new_zeros(rows))
        assert nothing.item() == 0
        assert all(not gradient.any() for gradient in torch.autograd.grad(nothing, given))


def test_a_bag_of_one_term_is_a_target() -> None:
    given, targets = made()
    bags = functional.one_hot(targets, TERMS).bool()
    found, expected = given.bag_cross_entropy(bags, bags.sum(1)), given.cross_entropy(targets)
    torch.testing.assert_close(found, expected)
    pairs = zip(
        torch.autograd.grad(found, given), torch.autograd.grad(expected, given), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other)


def test_no_slopes_of_bags_where_none_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    given, _ = made()
    bags, sizes = bagged()
    monkeypatch.setattr(torch, "exp", None)
    frozen = Prediction(*(tensor.detach() for tensor in given if tensor is not None))
    expected = pytest.approx(plain_bags(given, bags).item())
    assert frozen.bag_cross_entropy(bags, sizes).item() == expected
    with torch.no_grad():
        assert given.bag_cross_entropy(bags, sizes).item() == expected


@pytest.mark.usefixtures("alignment")
def test_bags_in_mixed_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses.AT_ONCE, "cpu", 30 * TERMS)
    given, _ = made(torch.float32, 1000)
    bags, sizes = bagged(1000)
    with torch.autocast("cpu", torch.bfloat16):
        found = given.bag_cross_entropy(bags, sizes)
        logits = functional.linear(given.features, given.matrix, given.bias).float()
    inside = torch.where(bags, logits, 0).sum(1) / sizes.clamp(min=1)
    expected = torch.where(sizes > 0, logits.logsumexp(1) - inside, 0).sum()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    exact = torch.autograd.grad(plain_bags(given, bags), given)
    usual = torch.autograd.grad(expected, given)
    for one, other, truth in zip(torch.autograd.grad(found, given), usual, exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - truth).norm() < 1.2 * (other - truth).norm() + 1e-3 * truth.norm()


def test_finite_differences_of_bags() -> None:
    given, _ = made(tokens=3)
    bags, sizes = bagged(3)

    def loops() -> float:
        assert given.bias is not None
        matrix, bias = given.matrix.tolist(), given.bias.tolist()
        total = 0.0
        for row, bag in zip(given.features.tolist(), bags, strict=True):
            terms = bag.nonzero().flatten().tolist()
            logits = [
                sum(x * w for x, w in zip(row, weights, strict=True)) + b
                for weights, b in zip(matrix, bias, strict=True)
            ]
            total -= sum(log_softmax(logits, term) for term in terms) / max(1, len(terms))
        return total

    loss = given.bag_cross_entropy(bags, sizes)
    assert loss.item() == pytest.approx(loops())
    for tensor, found in zip(given, torch.autograd.grad(loss, given), strict=True):
        torch.testing.assert_close(found, numerical_gradient(loops, tensor), rtol=1e-6, atol=1e-7)


def test_finite_differences() -> None:
    given, targets = made(tokens=3)

    def loops() -> float:
        rows, matrix = given.features.tolist(), given.matrix.tolist()
        assert given.bias is not None
        bias = given.bias.tolist()
        total = 0.0
        for row, target in zip(rows, targets.tolist(), strict=True):
            logits = [
                sum(x * w for x, w in zip(row, weights, strict=True)) + b
                for weights, b in zip(matrix, bias, strict=True)
            ]
            total -= log_softmax(logits, target)
        return total

    loss = given.cross_entropy(targets)
    assert loss.item() == pytest.approx(loops())
    for tensor, found in zip(given, torch.autograd.grad(loss, given), strict=True):
        torch.testing.assert_close(found, numerical_gradient(loops, tensor), rtol=1e-6, atol=1e-7)


def test_terms_that_pad_are_never_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(losses.MULTIPLE, "cpu", 8)
    given, _ = made()
    matrix, bias = aligned(given.matrix, given.bias)
    assert matrix.shape == (40, WIDTH)
    assert bias is not None
    assert torch.isneginf(bias[TERMS:]).all()


def test_two_threads_share_a_head(backbone: Backbone) -> None:
    """One multiplies out while the other does not."""
    states = torch.randn(40, 8, generator=torch.Generator().manual_seed(2)).double()
    whole = backbone.model.cls(states)
    with ThreadPoolExecutor(2) as pool:
        raw = pool.map(lambda _: backbone.predict(states).features, range(50))
        multiplied = pool.map(lambda _: backbone.model.cls(states), range(50))
        assert all(features.shape == (40, 8) for features in raw)
        assert all(torch.equal(logits, whole) for logits in multiplied)
