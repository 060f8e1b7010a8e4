"""The largest logit of each text and term: in plain torch, and as a GPU's kernels compute it.

Without a GPU the kernels run in Triton's interpreter, where Triton is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.nn.heads import Prediction
from isthmus.nn.kernels import lexicon

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


@pytest.fixture
def kernels(triton: Any) -> Any:
    """The module of kernels, wherever they can run."""
    from isthmus.nn.kernels import lexicon_triton

    return lexicon_triton


@pytest.fixture(params=["plain", "kernels"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who computes: plain torch, or kernels in tiles so small that every text has several."""
    name: str = request.param
    if name == "kernels":
        module = request.getfixturevalue("kernels")
        monkeypatch.setattr(module, "tiles_for", lambda device: small_tiles(module))
    monkeypatch.setattr(lexicon, "has_half_kernels", lambda *given: name == "kernels")
    return name


def small_tiles(module: Any) -> Any:
    return module.Tiles(terms=32, tokens=16, width=32, warps=4, stages=2, rows=3)


def made(
    inside: Tensor, terms: int = 70, width: int = 40, dtype: torch.dtype = torch.float32
) -> Prediction:
    generator = torch.Generator().manual_seed(3)
    shapes = (*inside.shape, width), (terms, width), (terms,)
    numbers = (torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes)
    return Prediction(*(number.requires_grad_() for number in numbers))


def ragged(lengths: list[int], longest: int) -> Tensor:
    return (torch.arange(longest) < torch.tensor(lengths)[:, None]).to(DEVICE)


def by_hand(given: Prediction, inside: Tensor) -> Tensor:
    """All logits at once, in float64; of equal ones the first."""
    features, matrix, bias = (None if tensor is None else tensor.double().cpu() for tensor in given)
    assert features is not None
    assert matrix is not None
    logits = features @ matrix.T + (0 if bias is None else bias)
    rows = []
    for row, seen in zip(logits, inside.cpu(), strict=True):
        numbers = row[seen]
        rows.append(numbers.max(0).values if len(numbers) else 0 * row[0])
    return torch.stack(rows) if rows else logits.sum(1)


def upstream_of(found: Tensor) -> Tensor:
    """What comes back from above: zero for every third term."""
    generator = torch.Generator().manual_seed(4)
    upstream = torch.randn(found.shape, generator=generator)
    upstream[:, ::3] = 0
    return upstream


def gradients(value: Tensor, given: Prediction) -> list[Tensor]:
    upstream = upstream_of(value).to(value)
    wanted = [tensor for tensor in given if tensor is not None and tensor.requires_grad]
    return [
        gradient.double().cpu()
        for gradient in torch.autograd.grad((value * upstream).sum(), wanted)
    ]


def holes() -> Tensor:
    """Texts with special tokens anywhere, of which some have nothing else."""
    inside = torch.rand(11, 35, generator=torch.Generator().manual_seed(5)) < 0.7
    inside[0] = inside[4] = inside[-1] = False
    inside[6:9] = False  # all that one program reads
    inside[2] = inside[9] = False
    inside[2, 0] = inside[9, 34] = True
    inside[3] = True
    return inside.to(DEVICE)


INSIDE: dict[str, Callable[[], Tensor]] = {
    "ragged": lambda: ragged([1, 16, 17, 45, 3, 32, 31, 1], 45),
    "with holes": holes,
    "one text": lambda: ragged([40], 40),
    "one token": lambda: ragged([1], 1),
    "ends with a tile": lambda: ragged([16, 0, 32, 0, 0, 0, 16], 32),
    "nothing": lambda: ragged([0, 0], 5),
    "no texts": lambda: torch.ones(0, 4, dtype=torch.bool, device=DEVICE),
}


@pytest.mark.parametrize("case", INSIDE)
@pytest.mark.parametrize(("terms", "width"), [(70, 40), (64, 64), (3, 5)])
def test_value_and_gradients(way: str, case: str, terms: int, width: int) -> None:
    inside = INSIDE[case]()
    given = made(inside, terms, width)
    found, expected = given.largest(inside), by_hand(given, inside)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(found, given), gradients(expected, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(given.largest(inside), found, rtol=1e-6, atol=1e-6)


def test_in_bf16_only_what_goes_in_is_rounded(way: str) -> None:
    inside = holes()
    given = made(inside, dtype=torch.bfloat16)
    found, expected = given.largest(inside), by_hand(given, inside)
    rounding = 1e-5 if way == "kernels" else 1e-2
    torch.testing.assert_close(found.double().cpu(), expected, rtol=rounding, atol=rounding)
    assert way == "plain" or not torch.equal(found, found.bfloat16().float())
    for one, other in zip(gradients(found, given), gradients(expected, given), strict=True):
        if way == "kernels":  # rounded logits tie, and another of them may count
            torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def test_of_equal_logits_the_first_counts(way: str) -> None:
    if ON_GPU and way == "plain":
        pytest.skip("of equal numbers, torch may take any on a GPU")
    inside = ragged([40, 9, 40], 40)
    inside[0, :2] = False
    given = made(inside)
    # In the same tile, in another, outside and before; across the end of a tile.
    first = ([0, 1, 2], [5, 0, 15])
    again = ([0, 0, 0, 1, 2], [9, 39, 1, 8, 16])
    with torch.no_grad():
        given.features[first] *= 1000
        given.features[again] = given.features[[0, 0, 0, 1, 2], [5, 5, 5, 0, 15]]
    (found,) = torch.autograd.grad(given.largest(inside).sum(), given.features)
    assert found.any(2)[first].all()
    assert not found.any(2)[again].any()


def test_without_bias_and_with_frozen_parts(way: str) -> None:
    inside = holes()
    given = made(inside)._replace(bias=None)
    assert given.bias is None
    for frozen in ("matrix", "features", "neither"):
        kept = (
            given
            if frozen == "neither"
            else given._replace(**{frozen: getattr(given, frozen).detach()})
        )
        found, expected = kept.largest(inside), by_hand(kept, inside)
        torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-5, atol=1e-5)
        for one, other in zip(gradients(found, kept), gradients(expected, kept), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "any": lambda features: features,
    "ties": lambda features: features.round().clamp(-1, 1),
    "negative": lambda features: -features.abs() - 1,
    "negative ties": lambda features: -features.abs().round().clamp(1, 2),
    "all alike": torch.ones_like,
    "zeros": lambda features: 0 * features.sign(),
    "near ties": lambda features: 1 + features * 1e-6,
    "infinite": lambda features: features.masked_fill(features > 0.5, -torch.inf),
    "all infinite": lambda features: torch.full_like(features, -torch.inf),
    "not numbers": lambda features: features.masked_fill(features > 0.5, torch.nan),
    "no number": lambda features: torch.full_like(features, torch.nan),
}


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("case", ["ragged", "with holes", "ends with a tile"])
def test_numbers_of_all_kinds(kernels: Any, case: str, numbers: str) -> None:
    inside = INSIDE[case]()
    features, matrix, bias = (tensor.detach() for tensor in made(inside))
    # A logit is the first number of a token times 1 or 2, and what the test says of it stays true.
    features = NUMBERS[numbers](features)
    features[..., 1:] = 0
    matrix[:, 0] = torch.arange(len(matrix), device=DEVICE) % 2 + 1
    exact = features[..., :1] * matrix[:, 0]
    never = ~inside[..., None] | exact.isnan()
    best, wanted = exact.masked_fill(never, -torch.inf).flatten(0, 1), inside.any(1)
    tops = best.view(*exact.shape).amax(1)
    first = (best.view(*exact.shape) == tops[:, None]).int().argmax(1)
    places = first + torch.arange(len(inside), device=DEVICE)[:, None] * inside.shape[1]
    for other in ({}, {"slots": 16}, {"tokens": 32, "rows": 16}):
        tiles = small_tiles(kernels)._replace(**other)
        for with_places in (True, False):
            found, where = kernels.find_largest(
                features, matrix, bias, inside, with_places, tiles=tiles
            )
            torch.testing.assert_close(
                found[wanted],
                (tops.masked_fill(tops == -torch.inf, torch.nan) + bias)[wanted],
                rtol=0, atol=0, equal_nan=True,
            )  # fmt: skip
            assert not found[~wanted].any()
            if with_places:
                numbered = (tops > -torch.inf) & wanted[:, None]
                assert torch.equal(where[numbered], places[numbered].int())
                assert (where[~numbered] == -1).all()
            else:
                assert where is None
