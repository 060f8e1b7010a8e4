"""Every architecture of re-rankers: packed, it scores as transformers does with padding."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification

from isthmus.collections import open_collection
from isthmus.nn import attention
from isthmus.nn.architectures import MASKED_LM
from isthmus.nn.classifier import Classifier

WORDS, LONGEST, PAIRS = 67, 144, 12
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": LONGEST + 2,
    "pad_token_id": 1,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
MODERN = {**SIZES, "global_attn_every_n_layers": 3, "local_attention": 8}
MODELS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(MASKED_LM, SIZES),
    "distilbert": {
        "vocab_size": WORDS, "dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 24,
        "max_position_embeddings": LONGEST, "pad_token_id": 1, "dropout": 0.0,
        "attention_dropout": 0.0, "seq_classif_dropout": 0.0,
    },
    "electra": {**SIZES, "embedding_size": 12},
    "modernbert": {**MODERN, "classifier_pooling": "cls"},
    "modernbert mean": {**MODERN, "classifier_pooling": "mean"},
}  # fmt: skip
# All but ModernBERT are BERT's layers under other names.
architecture = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("bert", "modernbert") else pytest.mark.nightly)
        for kind in MODELS
    ],
)
Batch = tuple[Tensor, Tensor, Tensor]  # ids, mask, segments


@pytest.fixture(params=["text by text", "padded for attention"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of a CPU, which otherwise depend on how long the texts are."""
    monkeypatch.setattr(attention, "LONG", 0 if request.param == "text by text" else 1000)


@pytest.fixture(scope="module")
def batch(shared_data: Path) -> Batch:
    """Random ids, at the lengths that questions and their answers really have."""
    collection = open_collection(f"beir:{shared_data / 'collections' / 'insuranceqa'}")
    judged = dict(list(collection.judgements("test").items())[:PAIRS])
    questions = {query.id: len(query.text.split()) for query in collection.queries()}
    wanted = {next(iter(answers)) for answers in judged.values()}
    answers = {
        document.id: len(document.text.split())
        for document in collection.documents()
        if document.id in wanted
    }
    pairs = [(questions[query], answers[next(iter(found))]) for query, found in judged.items()]
    first = torch.tensor([[question + 2] for question, _ in pairs])
    lengths = (first + torch.tensor([[answer + 1] for _, answer in pairs])).clamp(max=LONGEST)
    place = torch.arange(int(lengths.max()))
    mask = place < lengths
    ids = torch.randint(2, WORDS, mask.shape, generator=torch.Generator().manual_seed(2))
    return torch.where(mask, ids, 1), mask.long(), ((place >= first) & mask).long()


def random_classifier(kind: str, implementation: str = "sdpa") -> Classifier:
    torch.manual_seed(1)
    name = kind.partition(" ")[0]
    config = AutoConfig.for_model(name, **MODELS[kind], num_labels=1)
    # MPNet knows no other than its own.
    chosen = "eager" if kind == "mpnet" else implementation
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation=chosen)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return Classifier(model).train()


def plain_scores(classifier: Classifier, batch: Batch) -> Tensor:
    """As transformers computes them by itself."""
    ids, mask, segments = batch
    told = {"token_type_ids": segments} if classifier.takes_segments else {}
    scores: Tensor = classifier.model(input_ids=ids, attention_mask=mask, **told).logits[:, 0]
    return scores


def gradients(classifier: Classifier, scores: Tensor) -> dict[str, Tensor]:
    classifier.zero_grad()
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(3))
    (scores * weights).sum().backward()  # type: ignore[no-untyped-call]
    return {n: p.grad.clone() for n, p in classifier.named_parameters() if p.grad is not None}


def check(classifier: Classifier, scores: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    found, exact = gradients(classifier, scores), gradients(classifier, expected)
    assert set(found) == set(exact)
    for name, gradient in exact.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


@architecture
@pytest.mark.usefixtures("way")
# Segments are added to embeddings, before attention and whatever computes it.
@pytest.mark.parametrize(
    ("implementation", "segmented"),
    [
        pytest.param("sdpa", True, id="sdpa-segments"),
        pytest.param("sdpa", False, id="sdpa-one segment"),
        pytest.param("eager", True, id="eager-segments"),
        pytest.param("eager", False, id="eager-one segment", marks=pytest.mark.nightly),
    ],
)
def test_scores_and_gradients(
    kind: str, implementation: str, segmented: bool, batch: Batch
) -> None:
    ids, mask, segments = batch if segmented else (*batch[:2], torch.zeros_like(batch[2]))
    classifier = random_classifier(kind, implementation)
    streams: list[Tensor] = []
    classifier.encoder.embeddings.register_forward_hook(lambda *call: streams.append(call[2]))
    scores = classifier.score(ids, mask, segments)
    assert len(streams) == 1, "the encoder's work is done once"
    packed = (1, int(mask.sum())) if kind != "mpnet" else tuple(ids.shape)
    assert tuple(streams[0].shape[:2]) == packed, "the encoder met no padding"
    expected = plain_scores(classifier, (ids, mask, segments))
    assert tuple(streams[1].shape[:2]) == tuple(ids.shape)
    assert expected.std() > 0.01
    check(classifier, scores, expected)
    if segmented and classifier.takes_segments:
        other = classifier.score(ids, mask, 1 - segments)
        assert (scores - other).abs().min() > 1e-5, "segments are read"


@architecture
@pytest.mark.parametrize("lengths", [[5, 5, 5], [7], [1]], ids=str)
def test_without_padding(kind: str, lengths: list[int], batch: Batch) -> None:
    ids, _, segments = (part[: len(lengths), : lengths[0]] for part in batch)
    classifier = random_classifier(kind)
    mask = torch.ones_like(ids)
    scores = classifier.score(ids, mask, segments)
    check(classifier, scores, plain_scores(classifier, (ids, mask, segments)))


@pytest.mark.parametrize("kind", ["bert", "modernbert mean"])
def test_a_copy_has_weights_of_its_own(kind: str, batch: Batch) -> None:
    classifier = random_classifier(kind)
    copied = copy.deepcopy(classifier)
    before = classifier.score(*batch)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(0.5)
    for scores in (copied.score(*batch), plain_scores(copied, batch)):
        assert (scores - before).abs().max() > 1e-3
        assert gradients(copied, scores)
    assert all(parameter.grad is None for parameter in classifier.parameters())
    assert torch.equal(classifier.score(*batch), before)
