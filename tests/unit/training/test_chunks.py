"""Chunks of like length: the same rows in the same order, and with a size, one chunk's memory."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from isthmus.training import parallel as chunks
from isthmus.training.parallel import in_chunks


def padded(lengths: list[int], width: int) -> tuple[Tensor, Tensor]:
    """Rows of distinct numbers, with garbage behind them."""
    ids = torch.arange(1, len(lengths) * width + 1).view(len(lengths), width)
    mask = (torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]).long()
    return torch.where(mask.bool(), ids, -7), mask


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=20),
    st.integers(0, 3),
    st.none() | st.integers(1, 6),
    st.integers(1, 30),
)
def test_every_row_comes_back_in_its_place(
    lengths: list[int], more: int, size: int | None, tokens: int
) -> None:
    ids, mask = padded(lengths, max(lengths) + more)
    seen: list[tuple[int, int]] = []

    def represent(part: Tensor, shown: Tensor) -> Tensor:
        assert part.shape == shown.shape
        assert shown.any(0).all(), "no column is padding alone"
        assert len(part) == 1 or part.numel() <= tokens
        assert size is None or len(part) <= size
        seen.append((int(shown.sum(1).min()), int(shown.sum(1).max())))
        return torch.stack([(part * shown).sum(1), shown.sum(1)], dim=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "TOKENS", {"cpu": tokens})
        found = in_chunks(represent, ids, mask, size)
    assert found.tolist() == torch.stack([(ids * mask).sum(1), mask.sum(1)], dim=1).tolist()
    for (least, _), (_, most) in itertools.pairwise(seen):
        assert least >= most, "longest first: memory runs out at once or never"


class Watched(nn.Module):
    """Counts how often it is called, and how many of its activations are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 4)
        self.dropout = nn.Dropout(0.4)
        self.calls: list[int] = []
        self.alive = self.most_alive = 0

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        self.calls.append(len(ids))
        activation = self.embedding(ids).exp()  # which exp keeps for its gradient
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        weakref.finalize(activation.untyped_storage(), self._gone)
        kept: Tensor = self.dropout(activation) * mask[:, :, None]
        return kept.sum(1)

    def _gone(self) -> None:
        self.alive -= 1


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = [3, 7, 1, 7, 2, 5, 5]
    mask = padded(lengths, 7)[1]
    return torch.randint(50, mask.shape, generator=generator) * mask, mask


def gradients(model: Watched, batch: tuple[Tensor, Tensor], size: int | None) -> Tensor:
    """Of a loss that needs every row: the rows compete."""
    torch.manual_seed(1)
    model.zero_grad()
    rows = in_chunks(model, *batch, size)
    (rows @ rows.T).logsumexp(1).sum().backward()  # type: ignore[no-untyped-call]
    found = model.embedding.weight.grad
    assert found is not None
    return found.clone()


def test_where_padding_costs_nothing_there_is_one_chunk(
    batch: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "WHOLE", ("cpu",))
    monkeypatch.setattr(chunks, "TOKENS", {"cpu": 14})
    seen: list[tuple[Tensor, ...]] = []

    def represent(*given: Tensor) -> Tensor:
        seen.append(given)
        return given[0].sum(1)

    tokens = batch[1].flatten().nonzero()[:, 0]
    assert in_chunks(represent, *batch, None, tokens).tolist() == batch[0].sum(1).tolist()
    (given,) = seen
    assert all(part is whole for part, whole in zip(given, (*batch, tokens), strict=True))
    for size, without in ((3, tokens), (None, None)):
        seen.clear()
        in_chunks(represent, *batch, size, without)
        assert len(seen) > 1, "a size is a size everywhere, and padding is still to be spared"


def test_with_a_size_only_one_chunk_is_held(batch: tuple[Tensor, Tensor]) -> None:
    model = Watched()
    gradients(model, batch, 2)
    assert sorted(model.calls) == [1, 1, 2, 2, 2, 2, 2, 2], "once, and once more for the gradient"
    assert model.most_alive <= 2, "one, and the one that replaces it"
    model = Watched()
    gradients(model, batch, None)
    assert model.calls == [7]


def test_the_second_time_dropout_drops_the_same(
    batch: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Watched()
    cached = gradients(model, batch, 2)

    def plainly(function: Any, *inputs: Tensor, **_: Any) -> Any:
        return function(*inputs)

    monkeypatch.setattr(chunks, "checkpoint", plainly)
    assert torch.equal(cached, gradients(model, batch, 2))
    model.dropout.p = 0.0
    assert not torch.allclose(cached, gradients(model, batch, 2)), "something was dropped"


def test_without_gradients_nothing_is_computed_twice(batch: tuple[Tensor, Tensor]) -> None:
    model = Watched()
    with torch.no_grad():
        assert not in_chunks(model, *batch, 3).requires_grad
    assert model.calls == [3, 3, 1]
