"""Keep: 1 - cosine to the vector of before."""

from __future__ import annotations

import math

import torch

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.finetuning.losses import keep, losses
from isthmus.finetuning.tasks import BiEncoderTask
from isthmus.nn.backbone import Backbone
from isthmus.text.tokenizer import Tokenizer

Vector = list[float]
NOW = [[[1.0, 2.0, 0.5], [0.0, 1.0, 1.0]], [[2.0, -1.0, 0.3], [0.4, 0.4, 0.1]]]  # [query][passage]
THEN = [[[0.9, 2.2, 0.4], [0.1, 1.0, 0.8]], [[2.0, -1.0, 0.3], [-0.4, 0.3, 0.1]]]


def cosine(one: Vector, other: Vector) -> float:
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.hypot(*one) / math.hypot(*other)


def test_keep() -> None:
    wanted = [
        sum(1 - cosine(now, then) for now, then in zip(nows, thens, strict=True)) / 2
        for nows, thens in zip(NOW, THEN, strict=True)
    ]
    found = keep(torch.tensor(NOW, dtype=torch.float64), torch.tensor(THEN, dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))


def test_the_start_stays_what_it_was(backbone: Backbone, tokenizer: Tokenizer) -> None:
    settings = DenseSettings(pooling="mean", similarity="cosine", document_max_length=16)
    encoder = DenseEncoder(backbone, tokenizer, settings)
    chosen = losses({"keep": {}}, {"passages", "start_passages"})
    task = BiEncoderTask(encoder, 1, 1.0, chosen)
    task.settle()
    tokens = tokenizer.encode(["the cat sat", "on the mat", "a dog ran"], 16)
    ids = torch.tensor([row[:5] for row in tokens])
    batch = {
        "query_ids": ids, "query_mask": torch.ones_like(ids),
        "passage_ids": ids, "passage_mask": torch.ones_like(ids), "keys": torch.arange(3),
    }  # fmt: skip
    assert abs(task(batch)["keep"].item()) < 1e-6
    before = encoder.represent_documents(ids, torch.ones_like(ids)).detach()
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    after = encoder.represent_documents(ids, torch.ones_like(ids))
    wanted = (1 - torch.cosine_similarity(before, after)).sum()
    sums = task(batch)
    torch.testing.assert_close(sums["keep"], wanted)
    assert wanted.item() > 1e-4
    sums["keep"].backward()
    assert any(parameter.grad is not None for parameter in backbone.parameters())
    assert len(list(task.parameters())) == len(list(backbone.parameters()))
