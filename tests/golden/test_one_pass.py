"""What a step of fine-tuning encodes, and in how many passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.encoder import pad
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.finetuning.tasks import BiEncoderTask
from isthmus.nn.backbone import Backbone
from isthmus.text.tokenizer import Tokenizer
from isthmus.training import parallel as chunks

TEXTS = ["the cat sat on the mat", "dog", "cat ran", "the dog ran to the mat", "on to the end"]
SIDES = ("query", "passage")


def batch(tokenizer: Tokenizer, queries: slice, passages: slice) -> dict[str, Tensor]:
    made = {}
    for side, texts in zip(SIDES, (TEXTS[queries], TEXTS[passages]), strict=True):
        ids, mask = pad(tokenizer.encode(texts, 16), tokenizer.pad_id)
        made |= {f"{side}_ids": ids, f"{side}_mask": mask}
    return made


@pytest.mark.parametrize("wider", ["query", "passage"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "query terms"])
def test_one_pass_where_one_model_reads_both(
    kind: str,
    wider: str,
    tokenizer: Tokenizer,
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = {
        "dense": DenseEncoder(backbone, tokenizer, DenseSettings()),
        "sparse": SparseEncoder(backbone, tokenizer, SparseSettings()),
        "query terms": SparseEncoder(backbone, tokenizer, SparseSettings(query="terms")),
    }[kind]
    narrow, wide = slice(1, 3), slice(2, 5)
    given = batch(tokenizer, *((wide, narrow) if wider == "query" else (narrow, wide)))
    seen: list[tuple[Any, ...]] = []

    def remembered(*arguments: Any) -> Tensor:
        seen.append(arguments)
        return chunks.in_chunks(*arguments)

    monkeypatch.setattr("isthmus.finetuning.tasks.in_chunks", remembered)
    found = BiEncoderTask(encoder, 1, 1.0, []).represented(encoder, given)
    represents = encoder.represent_queries, encoder.represent_documents
    for side, represent, vectors in zip(SIDES, represents, found, strict=True):
        expected = represent(given[f"{side}_ids"], given[f"{side}_mask"])
        torch.testing.assert_close(vectors, expected, atol=1e-6, rtol=1e-6)
    ((_, ids, mask, *_),) = seen
    texts = found[1] if kind == "query terms" else torch.cat(found)
    assert len(ids) == len(mask) == len(texts)
    assert (ids[mask == 0] == tokenizer.pad_id).all()
