"""Training a re-ranker: -log softmax over each query's own group, however the batch is encoded."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import WITHOUT_DROPOUT, bert
from transformers import BertForSequenceClassification

from isthmus.encoders.cross import CrossEncoder, CrossSettings
from isthmus.finetuning.losses import losses
from isthmus.finetuning.pairs import LabelledQueries, TaughtScores
from isthmus.finetuning.tasks import CrossEncoderTask, CrossExamples
from isthmus.nn.backbone import Backbone
from isthmus.nn.classifier import Classifier
from isthmus.nn.packing import Packing
from isthmus.records import Document, Query
from isthmus.text.corpus import tokenise
from isthmus.text.tokenizer import new_tokenizer
from isthmus.training.task import Batch

TOKENIZER = new_tokenizer([f"fox{n} dog{n} answer" for n in range(30)], 200)
TOKENIZER.pretrained.model_input_names = ["input_ids", "attention_mask", "token_type_ids"]
QUERIES = ["fox3", "dog7 fox7 dog8 fox8 fox9 dog9", "dog5", "fox6 dog6"]
DOCUMENTS = [
    Document(f"d{n}", f"fox{n} " * (1 + n % 7) + ("answer" if n < 8 else f"dog{n}"))
    for n in range(30)
]
POSITIVES = [[3, 2], [7], [5], [6]]
NEGATIVES = np.arange(8, 28, dtype=np.int32).reshape(4, 5)
GROUP = 6
LISTWISE = losses({"listwise": {}}, {"group"})


@pytest.fixture
def encoder() -> CrossEncoder:
    torch.manual_seed(0)
    config = bert(
        len(TOKENIZER),
        max_position_embeddings=40,
        initializer_range=0.2,
        num_labels=1,
        **WITHOUT_DROPOUT,
    )
    settings = CrossSettings(query_max_length=8, document_max_length=14)
    return CrossEncoder(Classifier(BertForSequenceClassification(config)), TOKENIZER, settings)


@pytest.fixture
def examples(encoder: CrossEncoder, tmp_path: Path) -> CrossExamples:
    corpus = tokenise(DOCUMENTS, "s", TOKENIZER.serialised, cache=tmp_path)
    labelled = LabelledQueries([Query(text, text) for text in QUERIES], POSITIVES)
    return CrossExamples(labelled, NEGATIVES, GROUP, corpus, encoder)


@pytest.fixture
def batch(examples: CrossExamples) -> Batch:
    return examples.collate([examples[0, number] for number in range(len(QUERIES))])


def group_of(number: int, epoch: int = 0) -> list[int]:
    return [POSITIVES[number][epoch % len(POSITIVES[number])], *NEGATIVES[number].tolist()]


def test_the_loss_is_that_of_the_plain_formula(
    encoder: CrossEncoder, examples: CrossExamples, batch: Batch
) -> None:
    task = CrossEncoderTask(encoder, GROUP, LISTWISE)
    found = task(batch)
    expected = 0.0
    for number, query in enumerate(QUERIES):
        scores = [float(encoder.score([(query, DOCUMENTS[row])])[0]) for row in group_of(number)]
        assert len(set(scores)) == GROUP
        expected += math.log(sum(math.exp(score - scores[0]) for score in scores))
    assert found["listwise"].item() == pytest.approx(expected, rel=1e-5)
    assert task.counts(batch) == {"listwise": torch.tensor(4)}
    assert task.weights(0.5) == {"listwise": 1.0}


def test_rows_are_the_pairs_of_a_group_positive_first(
    encoder: CrossEncoder, examples: CrossExamples
) -> None:
    batch = examples.collate([examples[1, 1], examples[1, 0]])
    pairs = [(QUERIES[n], DOCUMENTS[row].text) for n in (1, 0) for row in group_of(n, epoch=1)]
    assert len(batch["ids"]) == len(pairs)
    for number, (query, text) in enumerate(pairs):
        sides = encoder.tokens([query]), encoder.tokens([text])
        (ids,), _, (segments,) = encoder.pairing.pad(*sides)
        assert batch["ids"][number][batch["mask"][number].bool()].tolist() == ids.tolist()
        assert batch["segments"][number, : len(ids)].tolist() == segments.tolist()
    assert group_of(0, epoch=1)[0] == 2, "the other positive had its turn"


@pytest.mark.parametrize("size", [1, 5, 24])
def test_gradient_caching_changes_nothing(encoder: CrossEncoder, batch: Batch, size: int) -> None:
    gradients = []
    for held in (None, size):
        task = CrossEncoderTask(encoder, GROUP, LISTWISE, held)
        task.zero_grad()
        task(batch)["listwise"].backward()
        gradients.append([parameter.grad.clone() for parameter in task.parameters()])
    for whole, cached in zip(*gradients, strict=True):
        torch.testing.assert_close(cached, whole, rtol=1e-4, atol=1e-6)


def test_at_once_and_without_padding_it_is_the_same(
    encoder: CrossEncoder, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where the places of the tokens spare asking it."""
    streams: list[torch.Tensor] = []
    own = Packing.of

    def of(mask: torch.Tensor, tokens: torch.Tensor | None) -> Packing:
        assert tokens is batch["tokens"]
        return own(mask, tokens)

    encoder.backbone.encoder.embeddings.register_forward_hook(lambda *call: streams.append(call[2]))
    task = CrossEncoderTask(encoder, GROUP, LISTWISE)
    # By which the trainer finds what `training.packing` is set on.
    assert [part for part in task.modules() if isinstance(part, Backbone)] == [encoder.backbone]
    found = []
    for packing in (False, True):
        encoder.backbone.use_packing = packing
        task.zero_grad()
        loss = task(batch)["listwise"]
        loss.backward()
        found.append((loss.detach(), [parameter.grad.clone() for parameter in task.parameters()]))
        monkeypatch.setattr("isthmus.training.parallel.WHOLE", ("cpu",))
        monkeypatch.setattr(Packing, "of", of)
    assert streams[-1].shape[:2] == (1, int(batch["mask"].sum()))
    assert len(batch["tokens"]) == int(batch["mask"].sum())
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


def test_a_teacher_may_teach_it_too(
    encoder: CrossEncoder, examples: CrossExamples, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    positives = np.full((4, 2), np.nan, dtype=np.float32)
    positives[:, 0] = generator.normal(size=4)
    taught = TaughtScores(positives, generator.normal(size=NEGATIVES.shape).astype(np.float32))
    labelled, corpus = examples.labelled, examples.corpus
    examples = CrossExamples(labelled, NEGATIVES, GROUP, corpus, encoder, taught)
    batch = examples.collate([examples[0, number] for number in range(4)])
    chosen = losses({"margin_mse": {"weight": 0.5}}, {"group", "teacher"})
    task = CrossEncoderTask(encoder, GROUP, chosen)
    expected = 0.0
    for number, query in enumerate(QUERIES):
        own = encoder.score([(query, DOCUMENTS[row]) for row in group_of(number)]).tolist()
        theirs = [float(positives[number, 0]), *taught.negatives[number].tolist()]
        differences = [
            (own[0] - own[place]) - (theirs[0] - theirs[place]) for place in range(1, GROUP)
        ]
        expected += sum(difference**2 for difference in differences) / len(differences)
    assert task(batch)["margin_mse"].item() == pytest.approx(expected, rel=1e-4)
    assert task.weights(1.0) == {"margin_mse": 0.5}


def test_it_learns_which_documents_answer(encoder: CrossEncoder, examples: CrossExamples) -> None:
    task = CrossEncoderTask(encoder, GROUP, LISTWISE)
    optimiser = torch.optim.AdamW(task.parameters(), lr=5e-3)
    for step in range(25):
        batch = examples.collate([examples[step, number] for number in range(len(QUERIES))])
        loss = task(batch)["listwise"] / len(QUERIES)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1 < math.log(GROUP)
    best = [
        int(encoder.score([(query, DOCUMENTS[row]) for row in group_of(number)]).argmax())
        for number, query in enumerate(QUERIES)
    ]
    assert best == [0, 0, 0, 0]
