"""Sparse vectors: max over positions of log1p(relu(head(H))), or a learned weight per term."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.golden.loops import check_all_weights, plain_head

from isthmus.encoders.query_terms import QueryTerms
from isthmus.encoders.sparse import SparseEncoder, SparseSettings, term_weights
from isthmus.finetuning.losses import losses
from isthmus.finetuning.regularizers import regularizers
from isthmus.finetuning.tasks import SparseTask
from isthmus.nn import heads
from isthmus.nn import losses as vocabulary
from isthmus.nn.backbone import Backbone
from isthmus.text.tokenizer import Tokenizer

# [CLS] words [SEP], padded; an unknown word, a repeated one, and a text without any.
IDS = [[2, 5, 6, 1, 5, 3], [2, 9, 8, 3, 0, 0], [2, 3, 0, 0, 0, 0], [2, 13, 3, 0, 0, 0]]
MASK = [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]
SPECIAL = {0, 1, 2, 3, 4}
Rows = list[list[float]]
pooling_strategy = pytest.mark.parametrize("pooling", ["max", "sum"])


def plain(
    states: Any,
    head: Callable[[list[float]], list[float]],
    form: str,
    pooling: str = "max",
    logs: int = 1,
) -> Rows:
    """The definition, position by position: saturate each logit, then take the largest or add."""
    pooled = max if pooling == "max" else operator.add
    rows = []
    for row, tokens in enumerate(IDS):
        weights = None
        for place, token in enumerate(tokens):
            if not MASK[row][place] or (form == "lexmae" and token in SPECIAL):
                continue
            seen = [max(0.0, logit) for logit in head(states[row][place])]
            for _ in range(logs):
                seen = [math.log(1 + weight) for weight in seen]
            weights = seen if weights is None else list(map(pooled, weights, seen))
        rows.append(weights or [0.0] * len(head(states[row][0])))
    return rows


def made(backbone: Backbone, tokenizer: Tokenizer, **settings: Any) -> SparseEncoder:
    return SparseEncoder(backbone, tokenizer, SparseSettings.parse(settings, "test"))


@pytest.mark.parametrize(
    ("form", "pooling", "activation"),
    [
        ("splade", "max", "relu"), ("lexmae", "max", "relu"), ("splade", "sum", "relu"),
        ("lexmae", "sum", "log1p_relu"),
    ],
)  # fmt: skip
def test_value_and_gradient(
    form: str, pooling: str, activation: str, backbone: Backbone, tokenizer: Tokenizer
) -> None:
    chosen = {"form": form, "pooling_strategy": pooling, "activation": activation}
    encoder = made(backbone, tokenizer, **chosen)
    ids, mask = torch.tensor(IDS), torch.tensor(MASK)
    logs = 2 if activation == "log1p_relu" else 1

    def expected() -> Rows:
        with torch.no_grad():
            return plain(backbone(ids, mask).tolist(), plain_head(backbone), form, pooling, logs)

    weights = encoder.represent_documents(ids, mask)
    assert weights.dtype == torch.float32
    np.testing.assert_allclose(weights.detach().numpy(), expected(), atol=1e-6)
    assert (weights > 0).any()
    assert not weights[2].any() if form == "lexmae" else weights[2].any()
    factors = torch.randn(weights.shape, generator=torch.Generator().manual_seed(5))

    def loss() -> float:
        pairs = zip(expected(), factors.tolist(), strict=True)
        return sum(w * f for row, fs in pairs for w, f in zip(row, fs, strict=True))

    check_all_weights(backbone, (weights.double() * factors).sum(), loss)


@pooling_strategy
def test_few_logits_at_a_time_change_nothing(
    pooling: str, backbone: Backbone, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = made(backbone, tokenizer, pooling_strategy=pooling)
    ids, mask = torch.tensor(IDS), torch.tensor(MASK)
    copies = heads.COPIES if pooling == "sum" else 1
    found = []
    for rows in (100, 3, 1, 0):  # all at once, three and one, one each, one each though too large
        monkeypatch.setitem(vocabulary.AT_ONCE, "cpu", copies * rows * 6 * encoder.dimension)
        weights = encoder.represent_documents(ids, mask)
        gradient = torch.autograd.grad(weights.square().sum(), backbone.word_embeddings)[0]
        with torch.inference_mode():
            torch.testing.assert_close(encoder.represent_documents(ids, mask), weights.detach())
        found.append((weights.detach(), gradient))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pooling_strategy
def test_training_keeps_no_logits(pooling: str, backbone: Backbone, tokenizer: Tokenizer) -> None:
    encoder = made(backbone, tokenizer, pooling_strategy=pooling)
    ids, mask = torch.tensor(IDS), torch.tensor(MASK)
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    states = backbone(ids, mask)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        term_weights(encoder.backbone, states, mask.bool(), encoder.settings)
    assert max(kept) < len(IDS) * len(IDS[0]) * encoder.dimension


def test_a_learned_weight_for_each_distinct_term(
    backbone: Backbone, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = made(backbone, tokenizer, query="terms")
    assert encoder.query_terms is not None
    torch.testing.assert_close(encoder.query_terms.weights(), torch.ones(encoder.dimension))
    generator = torch.Generator().manual_seed(4)
    argument = torch.randn(encoder.dimension, generator=generator)
    encoder.query_terms.theta.data = argument / 50
    expected = [[0.0] * encoder.dimension for _ in IDS]
    for row, tokens in enumerate(IDS):
        for token in tokens:
            if token not in SPECIAL:
                expected[row][token] = math.log(1 + math.exp(argument[token].item()))
    monkeypatch.setattr(backbone, "forward", None)  # no transformer reads a query
    weights = encoder.represent_queries(torch.tensor(IDS), torch.tensor(MASK))
    np.testing.assert_allclose(weights.detach().numpy(), expected, atol=1e-5)
    words = ["cat sat ? cat", "dog mat", "", "end"]
    encoded = encoder.encode_queries(words)
    np.testing.assert_allclose(encoded.toarray(), expected, atol=1e-5)
    assert encoded.nnz == 2 + 2 + 0 + 1


def test_the_gradient_of_a_terms_weight_is_that_of_its_argument() -> None:
    terms = QueryTerms(4)
    terms.theta.data = torch.tensor([-2.0, -0.1, 0.4, 3.0]) / 50
    factors = [1.0, -2.0, 0.5, 3.0]
    (terms.weights() * torch.tensor(factors)).sum().backward()
    gradients = [
        f / (1 + math.exp(-x)) for f, x in zip(factors, [-2.0, -0.1, 0.4, 3.0], strict=True)
    ]
    assert terms.theta.grad is not None
    assert terms.theta.grad.tolist() == pytest.approx(gradients, rel=1e-5)


def test_padding_that_shares_its_id_with_a_term() -> None:
    terms = QueryTerms(3)
    ids, inside = torch.tensor([[0, 1, 0]]), torch.tensor([[True, True, False]])
    assert terms(ids, inside).tolist() == [pytest.approx([1.0, 1.0, 0.0])]


@pytest.mark.parametrize("query", ["encoder", "terms"])
def test_the_task_adds_regularizers_of_all_texts_of_the_pass(
    query: str, backbone: Backbone, tokenizer: Tokenizer
) -> None:
    encoder = made(backbone, tokenizer, query=query)
    chosen = {"flops": {"documents": 0.5, "queries": 0.25}, "l1": {"queries": 2.0, "ramp": 0.5}}
    task = SparseTask(
        encoder, 2, 1.0, losses({"contrastive": {}}, {"scores", "targets"}), regularizers(chosen)
    )
    ids, mask = torch.tensor(IDS), torch.tensor(MASK)
    batch = {
        "query_ids": ids[[3, 0]],
        "query_mask": mask[[3, 0]],
        "passage_ids": ids,
        "passage_mask": mask,
        "keys": torch.arange(4),
    }
    assert all(parameter.requires_grad for parameter in task.parameters()), "the head too"
    passages = plain(backbone(ids, mask).tolist(), plain_head(backbone), "splade")
    queries = [passages[3], passages[0]]
    if query == "terms":
        queries = [[float(v in tokens) for v in range(encoder.dimension)] for tokens in
                   ({13}, {5, 6})]  # fmt: skip
    sums = {name: value.item() for name, value in task(batch).items()}
    loss = 0.0
    for vector, target in zip(queries, (0, 2), strict=True):
        scores = [sum(x * y for x, y in zip(vector, p, strict=True)) for p in passages]
        loss += math.log(sum(math.exp(s) for s in scores)) - scores[target]
    expected = {
        "contrastive": loss,
        "flops/documents": flops(passages),
        "flops/queries": flops(queries),
        "l1/queries": sum(map(sum, queries)) / 2,
        "active_terms/queries": sum(w > 0 for row in queries for w in row) / 2,
        "active_terms/documents": sum(w > 0 for row in passages for w in row) / 4,
    }
    assert sums == pytest.approx(expected, rel=1e-4)
    counts = {name: count.item() for name, count in task.counts(batch).items()}
    assert counts == {"contrastive": 2, "flops": 1, "l1": 1, "active_terms": 1}
    assert task.weights(1.0) == pytest.approx(
        {"contrastive": 1.0, "flops/documents": 0.5, "flops/queries": 0.25, "l1/queries": 2.0}
    )
    assert task.weights(0.25)["l1/queries"] == pytest.approx(2.0 * 0.5**2)


def flops(rows: Rows) -> float:
    return sum((sum(column) / len(rows)) ** 2 for column in zip(*rows, strict=True))
