"""Attention within short texts as a GPU's kernels compute it, against float64 in plain torch.

Without a GPU the kernels run in Triton's interpreter, where Triton is installed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isthmus.nn.kernels import norm_gelu, short_attention
from isthmus.nn.kernels.bert_layer import PostNorm, Rates
from isthmus.nn.kernels.short_attention import attend_shortly, attends_shortly
from isthmus.nn.packing import Asking, Masked, Packing

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# A GPU multiplies rounded numbers, whatever it is given.
TYPES = [torch.bfloat16, torch.float16] if ON_GPU else [torch.float32, torch.bfloat16]
EXACT = TYPES[0]
LOOSE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
HEADS = 2


@pytest.fixture
def kernels(triton: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of kernels, in tiles so small that a few tokens are several."""
    from isthmus.nn.kernels import short_attention_triton
    from isthmus.nn.kernels.short_attention_triton import Tile, Tuning

    if not ON_GPU:
        small = Tile(16, 32, 4, 1)
        tuning = Tuning(small, small, Tile(16, 64, 4, 1), small, small)
        monkeypatch.setattr(short_attention_triton, "TUNING", tuning)
    return short_attention_triton


def numbers(*shape: int, seed: int, dtype: torch.dtype = EXACT) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return drawn.to(dtype).to(DEVICE).requires_grad_()


def packing_of(sizes: list[int], length: int, causal: bool = False) -> Packing:
    mask = torch.arange(length) < torch.tensor(sizes)[:, None]
    return Packing.of(mask.to(DEVICE))._replace(causal=causal)


def plainly(
    parts: tuple[Tensor, Tensor, Tensor],
    query_offsets: Tensor,
    key_offsets: Tensor,
    causal: bool = False,
    visible: Tensor | None = None,
    kept: Tensor | None = None,
) -> Tensor:
    """Text by text and head by head; `kept` is what weights are multiplied by [heads, rows, …]."""
    queries, keys, values = parts
    answers = []
    bounds = [offsets.tolist() for offsets in (query_offsets, key_offsets)]
    for text in range(len(query_offsets) - 1):
        (begin, end), (first, last) = (each[text : text + 2] for each in bounds)
        asked, offered, told = queries[begin:end], keys[first:last], values[first:last]
        logits = torch.einsum("qhw,khw->hqk", asked, offered) * queries.shape[2] ** -0.5
        allowed = torch.ones(logits.shape[1:], dtype=torch.bool)
        if causal:
            allowed = allowed.tril()
        if visible is not None:
            allowed = allowed & visible[text, : end - begin, : last - first].cpu()
        some = allowed.any(1)[None, :, None]
        weights = logits.masked_fill(~allowed, -1e30).softmax(-1) if last > first else logits
        weights = torch.where(some, weights, 0)
        if kept is not None:
            weights = weights * kept[:, begin:end, : last - first]
        answers.append(torch.einsum("hqk,khw->qhw", weights, told))
    return torch.cat(answers)


def check(
    projected: tuple[Tensor, ...],
    visible: Packing | Masked,
    asking: Asking | None = None,
    dtype: torch.dtype = EXACT,
    loose: float | None = None,
) -> None:
    """Answers, and the gradients of all that is given."""
    packing, seen = visible if isinstance(visible, Masked) else (visible, None)
    biases = tuple(numbers(each[0].numel(), seed=7, dtype=torch.float32) for each in projected)
    answers = attend_shortly(projected, biases, visible, 0.0, asking)
    upstream = numbers(*answers.shape, seed=5, dtype=dtype).detach()
    found = torch.autograd.grad(answers, [*projected, *biases], upstream)
    exact = [each.detach().double().cpu().requires_grad_() for each in projected]
    offsets, key_offsets = (packing.offsets,) * 2 if asking is None else asking.texts(packing)
    queries, keys, values = (part for each in exact for part in each.unbind(1))
    wanted = plainly((queries, keys, values), offsets, key_offsets, packing.causal, seen)
    expected = torch.autograd.grad(wanted, exact, upstream.double().cpu())
    for name, ours, theirs in zip(
        ["answers", *["gradients"] * len(expected), *["biases"] * len(expected)],
        [answers, *found],
        [wanted, *expected, *(each.sum(0).flatten() for each in expected)],
        strict=True,
    ):
        assert ours.isfinite().all(), name
        size = theirs.norm() if name != "biases" else theirs.norm() + len(answers) ** 0.5
        off = (ours.double().cpu() - theirs).norm() / (size + 1e-9)
        assert off < (loose or LOOSE[dtype]), (name, off)


@pytest.mark.parametrize(
    ("sizes", "width", "dtype"),
    [
        ([5, 0, 32, 17], 64, TYPES[0]),
        ([5, 0, 32, 17], 8, TYPES[1]),
        ([50, 31, 64], 24, TYPES[0]),
        ([65, 3, 97], 16, TYPES[0]),
    ],
    ids=["short", "narrow", "middle", "long"],
)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(
    kernels: Any, sizes: list[int], width: int, causal: bool, dtype: torch.dtype
) -> None:
    packing = packing_of(sizes, max(sizes) + 3, causal)
    check((numbers(sum(sizes), 3, HEADS, width, seed=1, dtype=dtype),), packing, dtype=dtype)


@pytest.mark.skipif(not ON_GPU, reason="hours in the interpreter")
@pytest.mark.parametrize("width", [64, 120])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_many_texts(dtype: torch.dtype, causal: bool, width: int) -> None:
    generator = torch.Generator().manual_seed(2)
    sizes = torch.randint(0, 300, (70,), generator=generator).tolist()
    packing = packing_of(sizes, 300, causal)
    check((numbers(sum(sizes), 3, 12, width, seed=1, dtype=dtype),), packing, dtype=dtype)


def test_long_texts_in_the_tiles_of_a_gpu(triton: Any) -> None:
    sizes = [64, 128, 0, 65, 131]
    packing = packing_of(sizes, 140)
    check((numbers(sum(sizes), 3, 1, 16, seed=1),), packing)


@pytest.mark.parametrize("sizes", [[20, 0, 7, 70], [0, 4]])
def test_some_tokens_ask(kernels: Any, sizes: list[int]) -> None:
    """In one text nobody, and behind the last some who ask nothing."""
    length = max(sizes)
    packing = packing_of(sizes, length)
    generator = torch.Generator().manual_seed(2)
    wanted = torch.rand(len(sizes), length, generator=generator) < 0.4
    wanted = wanted.to(DEVICE) & packing.present[:, 0, 0]
    wanted[-1] = False
    asking = Asking.of(wanted)
    others = asking.offsets[-1:] + 4
    asking = asking._replace(offsets=torch.cat([asking.offsets, others]).to(torch.int32))
    queries = numbers(int(others), 1, HEADS, 16, seed=1)
    answering = numbers(sum(sizes), 2, HEADS, 16, seed=2)
    check((queries, answering), packing, asking)
    biases = tuple(each.detach()[0].flatten().float() for each in (queries, answering))
    answers = attend_shortly((queries, answering), biases, packing, 0.0, asking)
    assert (answers[-4:] == 0).all()


def test_any_strides(kernels: Any) -> None:
    packing = packing_of([20, 30], 30)
    whole = numbers(50, 5, HEADS + 1, 40, seed=1)
    check((whole[:, 1:4, 1:, 8:24],), packing)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sizes", [[30, 0, 12], [70, 33]])
def test_what_rows_see(kernels: Any, sizes: list[int], transposed: bool) -> None:
    """With rows that see nothing."""
    length = max(sizes)
    generator = torch.Generator().manual_seed(2)
    visible = (torch.rand(len(sizes), length, length, generator=generator) < 0.5).to(DEVICE)
    visible = visible.transpose(1, 2) if transposed else visible
    visible[:, 3] = False
    masked = Masked(packing_of(sizes, length), visible)
    check((numbers(sum(sizes), 3, HEADS, 16, seed=1),), masked)


def test_fillers_of_masked_texts(kernels: Any) -> None:
    """Behind all texts, of which nothing says what they see: others answer as without them."""
    sizes, length, fillers = [30, 12], 32, 2
    mask = torch.arange(length) < torch.tensor(sizes)[:, None]
    tokens = torch.cat([mask.flatten().nonzero()[:, 0], (~mask).flatten().nonzero()[:fillers, 0]])
    packing = Packing.of(mask.to(DEVICE), tokens.to(DEVICE))
    assert len(packing.offsets) == len(sizes) + 2
    visible = (torch.rand(2, length, length) < 0.5).to(DEVICE)
    states = numbers(sum(sizes) + fillers, 3, HEADS, 16, seed=1)
    bias = states.detach()[0].flatten().float()
    answers = attend_shortly((states,), (bias,), Masked(packing, visible), 0.0)
    some = Masked(packing_of(sizes, length), visible)
    expected = attend_shortly((states[:-fillers],), (bias,), some, 0.0)
    assert torch.equal(answers[:-fillers], expected)
    assert answers.isfinite().all()
    upstream = numbers(*answers.shape, seed=5, dtype=EXACT).detach()
    upstream[-fillers:] = 0
    [found] = torch.autograd.grad(answers, states, upstream)
    [wanted] = torch.autograd.grad(expected, states, upstream[:-fillers])
    assert torch.equal(found, wanted)


def test_far_from_zero(kernels: Any) -> None:
    """Logits below all that an exponential can hold, beside keys that are not there."""
    states = torch.zeros(20, 3, HEADS, 16, device=DEVICE, dtype=EXACT)
    states[:, 0] = 40
    states[:, 1] = -40
    states[:, 2] = numbers(20, HEADS, 16, seed=1).detach()
    # Of logits so large the last digits are lost, and keys so large make much of rounded gradients.
    check((states.requires_grad_(),), packing_of([3, 17], 17), loose=0.3 if ON_GPU else 2e-2)


def bits_of(words: Tensor, columns: int) -> Tensor:
    """[…, rows, columns] of words [..., words, rows]."""
    bits = words.cpu()[..., :, None, :] >> torch.arange(32)[:, None] & 1
    return bits.flatten(-3, -2).transpose(-1, -2)[..., :columns].bool()


def test_bits(kernels: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    visible = torch.rand(3, 140, 70, generator=generator) < 0.5
    assert torch.equal(bits_of(kernels.pack_bits(visible.to(DEVICE)), 70), visible)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 1e-3])
def test_draws(kernels: Any, rate: float) -> None:
    """As often as asked, from the seed and the place of a weight alone."""
    seed = torch.tensor([2**61 + 5], device=DEVICE)
    bits, scale = kernels.draw_kept(seed, rate, 300, 3, 64)
    kept = bits_of(bits, 64).double()
    assert kept.shape == (3, 300, 64)
    deviation = (rate * (1 - rate) / kept.numel()) ** 0.5
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation
    assert scale == pytest.approx(1 / (1 - rate), rel=1e-4)
    for dimensions in ((0, 1), (0, 2), (1, 2)):
        means = kept.mean(dimensions)
        few = kept.numel() / means.numel()
        assert (means - (1 - rate)).abs().max() < 6 * (rate * (1 - rate) / few) ** 0.5
    others = kernels.draw_kept(seed, rate, 300, 3, 96)[0]
    assert torch.equal(others[:, :2], bits)
    assert not torch.equal(kernels.draw_kept(seed + 1, 0.5, 300, 3, 64)[0], bits)
    if rate == 0.5:
        rows = kept.flatten(0, 1) * 2 - 1
        likeness = (rows @ rows.T / 64).fill_diagonal_(0)
        assert likeness.abs().max() < 6 / 8


@pytest.mark.parametrize("rate", [0.0, 1e-7])
def test_nothing_is_drawn_where_nothing_is_dropped(kernels: Any, rate: float) -> None:
    seed = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    assert kernels.draw_kept(seed, rate, 3, 3, 3) == (None, 1.0)


@pytest.mark.parametrize("sizes", [[30, 9], [70, 20]])
def test_drops(kernels: Any, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, scaled up, and the same ones on the way back."""
    drawn = []
    draw = kernels.draw_kept

    def noted(*given: Any) -> Any:
        drawn.append(draw(*given))
        return drawn[-1]

    monkeypatch.setattr(kernels, "draw_kept", noted)
    packing = packing_of(sizes, max(sizes))
    states = numbers(sum(sizes), 3, HEADS, 16, seed=1)
    biases = (torch.zeros(3 * HEADS * 16, device=DEVICE, requires_grad=True),)
    torch.manual_seed(3)
    answers = attend_shortly((states,), biases, packing, 0.25)
    upstream = numbers(*answers.shape, seed=5).detach()
    [found] = torch.autograd.grad(answers, [states], upstream)
    [(bits, scale)] = drawn
    assert scale == 4 / 3
    exact = states.detach().double().cpu().requires_grad_()
    queries, keys, values = exact.unbind(1)
    offsets = packing.offsets
    kept = bits_of(bits, max(sizes)) * scale
    wanted = plainly((queries, keys, values), offsets, offsets, kept=kept)
    [expected] = torch.autograd.grad(wanted, [exact], upstream.double().cpu())
    for ours, theirs in ((answers, wanted), (found, expected)):
        off = (ours.double().cpu() - theirs).norm() / theirs.norm()
        assert off < LOOSE[EXACT], off
    torch.manual_seed(3)
    assert torch.equal(attend_shortly((states,), biases, packing, 0.25), answers)
    assert not torch.equal(attend_shortly((states,), biases, packing, 0.25), answers)


def test_who_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    states = numbers(1, 3, 16, seed=1)
    packing = packing_of([3], 3)
    assert ON_GPU or not attends_shortly(states, packing, 16)
    monkeypatch.setattr(short_attention, "has_kernels", lambda states: True)
    assert attends_shortly(states, packing, 16)
    assert not attends_shortly(states, packing, 12)
    assert not attends_shortly(states, packing, 136)
    long = packing_of([300], 300)
    assert not attends_shortly(states, long, 16)
    assert attends_shortly(states, Masked(long, torch.ones(1, 300, 300).bool()), 16)
    assert not attends_shortly(states, torch.ones(1, 3, 3).bool(), 16)


def a_layer(width: int) -> PostNorm:
    torch.manual_seed(3)
    query, key, value, output = (nn.Linear(width, width) for _ in range(4))
    grow, shrink = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
    norms = nn.LayerNorm(width), nn.LayerNorm(width)
    layer = PostNorm(query, key, value, output, norms[0], grow, shrink, norms[1])
    for module in layer:
        module.to(DEVICE, EXACT if ON_GPU else None)
    return layer


@pytest.mark.parametrize("kind", ["alone", "some", "masked"])
def test_a_layer(kernels: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with these kernels as without, and so are the gradients of all its weights."""
    sizes, length, width = [20, 7, 33], 33, 32
    packing = packing_of(sizes, length)
    states = numbers(1, sum(sizes), width, seed=1)
    layer = a_layer(width)
    weights = [each for module in layer for each in module.parameters()]

    def run() -> list[Tensor]:
        if kind == "some":
            wanted = torch.zeros(len(sizes), length, dtype=torch.bool, device=DEVICE)
            wanted[:, 2:6] = True
            asking = Asking.of(wanted)
            found = layer.run_for_some(states, packing, asking, HEADS, Rates(), None)
        elif kind == "masked":
            visible = torch.ones(len(sizes), length, length, device=DEVICE).tril().bool()
            masked = Masked(packing, visible & packing.present[:, 0])
            content = states * 2
            found, _ = layer.run(states, states, masked, HEADS, Rates(), content)
        else:
            found, _ = layer.run(states, states, packing, HEADS, Rates())
        upstream = numbers(*found.shape, seed=6).detach()
        return [found, *torch.autograd.grad(found, [states, *weights], upstream)]

    called = []
    real = short_attention.attend_shortly

    def noted(*given: Any) -> Tensor:
        called.append(given)
        return real(*given)

    monkeypatch.setattr("isthmus.nn.kernels.bert_layer.attend_shortly", noted)
    monkeypatch.setattr(norm_gelu, "has_kernels", lambda states: ON_GPU)
    monkeypatch.setattr(short_attention, "has_kernels", lambda states: False)
    wanted = run()
    assert not called
    monkeypatch.setattr(short_attention, "has_kernels", lambda states: True)
    monkeypatch.setattr("isthmus.nn.kernels.bert_layer.kernel_type", lambda states: states.dtype)
    found = run()
    assert len(called) == 1
    for ours, theirs in zip(found, wanted, strict=True):
        off = (ours - theirs).norm() / (theirs.norm() + 1)  # that of the keys' bias is 0
        assert off < 4 * LOOSE[EXACT], (off, ours.shape)
