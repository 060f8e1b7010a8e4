"""Packing and the attention of packed texts, on a CPU and as a GPU is asked for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from isthmus.nn import attention
from isthmus.nn.attention import Triple, packed_attention
from isthmus.nn.packing import Asking, Packing, take_rows, visible_within

MASKS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def mask_of(lengths: list[int]) -> Tensor:
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def by_hand(stream: Triple, lengths: list[int], sees: Callable[[int, int], bool]) -> Tensor:
    """Each token's mean of the values it sees, weighted by softmax, one after the other."""
    queries, keys, values = (states[0].double() for states in stream)
    answers = torch.zeros_like(queries)
    start = 0
    for length in lengths:
        for row in range(length):
            seen = [start + column for column in range(length) if sees(row, column)]
            scores = (keys[:, seen] @ queries[:, start + row, :, None])[..., 0] / 8**0.5
            weights = scores.softmax(1)
            answers[:, start + row] = (weights[..., None] * values[:, seen]).sum(1)
        start += length
    return answers[None]


@given(MASKS)
def test_there_and_back(lengths: list[int]) -> None:
    mask = mask_of(lengths)
    packing = Packing.of(mask)
    padded = torch.randn(*mask.shape, 3) * mask[:, :, None]
    stream = packing.pack(padded)
    assert stream.shape == (1, sum(lengths), 3)
    assert torch.equal(packing.unpack(stream), padded)
    assert packing.offsets.tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    assert packing.offsets.dtype == torch.int32, "which the kernel wants"
    assert torch.equal(Packing.of(mask, packing.tokens).tokens, packing.tokens)


def test_a_gradient_comes_back_from_the_tokens_alone() -> None:
    mask = mask_of([2, 4])
    padded = torch.randn(2, 4, 3, requires_grad=True)
    packing = Packing.of(mask)
    packing.unpack(packing.pack(padded) * 2).sum().backward()  # type: ignore[no-untyped-call]
    assert padded.grad is not None
    assert torch.equal(padded.grad, 2.0 * mask[:, :, None].expand(2, 4, 3))


def test_what_is_visible() -> None:
    def drawn(found: Tensor) -> list[str]:
        return ["".join("x" if cell else "." for cell in row) for row in found.tolist()]

    mask = mask_of([2, 4])
    assert drawn(visible_within(mask)[:, 0, 0]) == ["xx..", "xxxx"]
    assert drawn(visible_within(mask, causal=True)[1, 0]) == ["x...", "xx..", "xxx.", "xxxx"]
    assert drawn(visible_within(mask, reach=1)[1, 0]) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert drawn(visible_within(mask, True, 1)[0, 0]) == ["x...", "xx..", ".x..", "...."]


SIGHTS: dict[str, tuple[bool, int | None, Callable[[int, int], bool]]] = {
    "all": (False, None, lambda row, column: True),
    "causal": (True, None, lambda row, column: column <= row),
    "reach": (False, 2, lambda row, column: abs(row - column) <= 2),
    "causal reach": (True, 1, lambda row, column: 0 <= row - column <= 1),
}
LENGTHS = [3, 1, 7, 4]


def tokens_of(
    lengths: list[int], change: Callable[[Tensor], Tensor] = torch.Tensor.clone
) -> Triple:
    generator = torch.Generator().manual_seed(4)
    shape = 1, 2, sum(lengths), 8
    queries, keys, values = (change(torch.randn(shape, generator=generator)) for _ in range(3))
    return queries, keys, values


@pytest.mark.parametrize("long", [0, 1000], ids=["text by text", "padded"])
@pytest.mark.parametrize("sight", SIGHTS)
def test_each_text_attends_to_itself(
    sight: str, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "LONG", long)
    causal, reach, sees = SIGHTS[sight]
    stream = tokens_of(LENGTHS)
    packing = Packing.of(mask_of(LENGTHS))._replace(causal=causal)
    found = packed_attention(stream, packing, reach=reach)
    torch.testing.assert_close(found.double(), by_hand(stream, LENGTHS, sees), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sight", SIGHTS)
def test_the_operator_takes_what_it_is_given(sight: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes, types and gradients by torch's own account of the kernel, which needs no GPU."""
    monkeypatch.setattr(attention, "has_kernel", lambda states: True)
    causal, reach, _ = SIGHTS[sight]
    stream = tokens_of(LENGTHS, lambda states: states.to("meta", torch.bfloat16).requires_grad_())
    here = Packing.of(mask_of(LENGTHS))
    packing = Packing(
        here.tokens.to("meta"), here.present.to("meta"), here.offsets.to("meta"), causal
    )
    found = packed_attention(stream, packing, dropout=0.1, scale=0.5, reach=reach)
    assert found.shape == stream[0].shape
    assert found.dtype == torch.bfloat16
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert all(states.grad is not None for states in stream)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("sight", SIGHTS)
def test_a_gpu_computes_the_same(sight: str) -> None:
    causal, reach, _ = SIGHTS[sight]
    lengths = [3, 1, 70, 130]
    found = []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        packing = Packing.of(mask_of(lengths).to(device))._replace(causal=causal)

        def moved(states: Tensor, device: str = device, dtype: torch.dtype = dtype) -> Tensor:
            return states.to(device, torch.bfloat16).to(dtype).requires_grad_()

        stream = tokens_of(lengths, moved)
        assert attention.has_kernel(stream[0]) == (device == "cuda")
        answers = packed_attention(stream, packing, reach=reach)
        answers.float().square().sum().backward()  # type: ignore[no-untyped-call]
        grads = [states.grad for states in stream]
        found.append(
            [each.float().cpu() for each in (answers.detach(), *grads) if each is not None]
        )
    # Gradients of up to 10, each a sum of numbers rounded to 8 bits.
    torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=5e-2)


def test_those_who_ask_are_put_back() -> None:
    wanted = torch.tensor([[True, False, True], [True, False, False]])
    asked = Asking(torch.tensor([0, 2, 3, -1, -1]), torch.tensor([0, 2, 3, 5], dtype=torch.int32))
    states = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    padded = asked.put_back(states, 2, 3)
    assert torch.equal(padded[wanted], states[0, :3])
    assert not padded[~wanted].any()
    torch.autograd.gradcheck(lambda states: asked.put_back(states, 2, 3), states)
    [gradient] = torch.autograd.grad(padded.sum(), states)
    assert gradient.sum(2).tolist() == [[4, 4, 4, 0, 0]]


def test_rows_are_taken_and_their_gradients_put_where_they_were() -> None:
    places = torch.tensor([4, 0, -1, 2, -1])
    rows = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    known = places >= 0
    assert torch.equal(take_rows(rows, places)[known], rows[places[known]])
    torch.autograd.gradcheck(lambda rows: take_rows(rows, places)[known], rows)
    [gradient] = torch.autograd.grad(take_rows(rows, places).sum(), rows)
    assert gradient.sum(1).tolist() == [3, 0, 3, 0, 3, 0]
