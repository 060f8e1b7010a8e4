"""Gradient caching: whatever is held at once, losses and gradients are those of the whole batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.encoder import Encoder
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.finetuning.losses import losses
from isthmus.finetuning.regularizers import regularizers
from isthmus.finetuning.tasks import BiEncoderTask, SparseTask
from isthmus.nn.backbone import Backbone
from isthmus.text.tokenizer import Tokenizer
from isthmus.training import parallel as chunks

GROUP = 3
KINDS: dict[str, DenseSettings | SparseSettings] = {
    "dense": DenseSettings(pooling="mean", similarity="cosine"),
    "sparse": SparseSettings(form="lexmae"),
    "query terms": SparseSettings(query="terms"),
}
REGULARIZERS = {"flops": {"queries": 0.3, "documents": 0.2}, "l1": {"documents": 0.1}}


def encoder(kind: str, backbone: Backbone, tokenizer: Tokenizer) -> Encoder:
    settings = KINDS[kind]
    if isinstance(settings, DenseSettings):
        return DenseEncoder(backbone, tokenizer, settings)
    return SparseEncoder(backbone, tokenizer, settings)


def batch(tokenizer: Tokenizer) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)

    def side(lengths: list[int]) -> tuple[Tensor, Tensor]:
        mask = (torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]).long()
        ids = torch.randint(5, len(tokenizer), mask.shape, generator=generator)
        return ids * mask, mask

    query_ids, query_mask = side([4, 2, 6, 3])
    ids, mask = side([5, 9, 3, 12, 4, 4, 7, 8, 2, 6, 11, 5])
    return {
        "query_ids": query_ids, "query_mask": query_mask, "passage_ids": ids, "passage_mask": mask,
        "keys": torch.tensor([1, 2, 3, 4, 1, 6, 7, 8, 9, 10, 11, 12]),
    }  # fmt: skip


def step(
    model: Encoder, given: dict[str, Tensor], size: int | None, precision: torch.dtype | None
) -> tuple[dict[str, float], dict[str, Tensor]]:
    learnt = losses({"contrastive": {}}, {"scores", "targets"})
    if model.uses_head:
        task = SparseTask(model, GROUP, 0.7, learnt, regularizers(REGULARIZERS), size)
    else:
        task = BiEncoderTask(model, GROUP, 0.7, learnt, size)
    task.zero_grad()
    with torch.autocast("cpu", precision, enabled=precision is not None):
        sums = task(given)
    weights = task.weights(1.0)
    sum(weights[name] * sums[name] for name in weights).backward()
    named = {name: value.grad for name, value in task.named_parameters() if value.requires_grad}
    found = {name: value.clone() for name, value in named.items() if value is not None}
    assert len(found) == len(named), "no parameter is left out"
    return {name: value.item() for name, value in sums.items()}, found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_equals_the_whole_batch(
    kind: str, size: int, backbone: Backbone, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = encoder(kind, backbone, tokenizer)
    given = batch(tokenizer)
    with monkeypatch.context() as patch:
        patch.setattr(
            "isthmus.finetuning.tasks.in_chunks",
            lambda represent, ids, mask, *_: represent(ids, mask),
        )
        expected, whole = step(model, given, None, None)
    monkeypatch.setattr(chunks, "TOKENS", {"cpu": 30})  # cuts by length too
    for size_or_none in (size, None):
        sums, found = step(model, given, size_or_none, None)
        assert sums == pytest.approx(expected, rel=1e-5)
        for name, value in whole.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_in_mixed_precision_too(kind: str, backbone: Backbone, tokenizer: Tokenizer) -> None:
    model = encoder(kind, backbone.float(), tokenizer)
    given = batch(tokenizer)
    expected, whole = step(model, given, None, torch.bfloat16)
    sums, found = step(model, given, 2, torch.bfloat16)
    assert sums == pytest.approx(expected, rel=0.02)
    largest = max(float(value.norm()) for value in whole.values())
    for name, value in whole.items():
        if name.endswith("key.bias"):  # softmax does not see it: 0 but for rounding
            assert found[name].norm() < 0.01 * largest, name
            continue
        error = (found[name] - value).norm() / value.norm().clamp(min=1e-3)
        assert error < 0.05, name
