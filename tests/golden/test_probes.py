"""Every probe, recomputed one unpadded text at a time, in plain loops over the vocabulary."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.golden.loops import log_softmax, plain_head

from isthmus.nn.backbone import Backbone
from isthmus.nn.randomness import key
from isthmus.pretraining.corruption import MaskingSettings, Uniform
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.probes import (
    HeldOut,
    Probe,
    Retrieval,
    assemble_probes,
    mean_reciprocal_rank,
)
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.step import IGNORED, PLACES, Step
from isthmus.pretraining.task import PretrainTask
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

Vector = list[float]
MAX_LENGTH = 20
HELD_OUT = np.array([3, 0, 5, 2, 7, 6])
# Titles repeat: "cat" is that of three documents, two of them held out.
DOCUMENTS = [
    ("cat", "the cat sat on the mat! to the end the cat ran! dog sat on cat"),
    ("dog", "the dog ran! the dog sat"),
    ("mat", "on the mat sat the cat"),
    ("cat", "cat ran to the dog at the end! the dog ran on! the mat sat on"),
    ("end", "the end! the end! the end! the dog sat! the dog"),
    ("dog", "the dog ran to the cat! on the mat the dog sat on the cat on the mat on the end"),
    ("run", "ran ran ran to the end on the mat! the x y z ran"),
    ("unk", "+ + + +"),  # nothing that the tokenizer knows: an empty bag
    ("cat", "the cat sat! the cat ran to the mat! the end"),
]
PAIRS: dict[str, Any] = {"view": {"name": "neighbours", "span": 10}}
AUTOENCODING: dict[str, Any] = {
    "bottleneck": "cls",
    "decoder": {"name": "bidirectional", "layers": 1},
    "decoder_corruption": {"name": "uniform", "rate": 0.5},
    "objectives": {"masked_lm": 1.0, "reconstruction": 1.0},
}
LEXMAE: dict[str, Any] = {
    **AUTOENCODING,
    "bottleneck": "lexicon",
    "decoder": {"name": "bidirectional", "layers": 2, "head": "own"},
    "decoder_corruption": "nested",
}
ENHANCED: dict[str, Any] = {**AUTOENCODING, "decoder": "enhanced", "decoder_corruption": None}
CONDENSER: dict[str, Any] = {
    **AUTOENCODING,
    "decoder": {"name": "condenser", "layers": 1},
    "decoder_corruption": None,
}
MEAN: dict[str, Any] = {"objectives": {"bag_of_words": {"vector": "mean"}}}
VECTORS = {"cls": {}, "mean": MEAN, "lexicon": LEXMAE}
TERMS = 5  # of a lexicon, that count in retrieval


@dataclass(frozen=True)
class Bench:
    """A task in evaluation mode, its probes, and what they are shown."""

    task: PretrainTask
    held_out: HeldOut
    probes: dict[str, Probe]

    @property
    def retrieval(self) -> Retrieval:
        probe = self.probes["retrieval"]
        assert isinstance(probe, Retrieval)
        return probe

    def measure(self, name: str) -> dict[str, float]:
        with torch.no_grad():
            return self.probes[name](self.task, self.held_out)


@pytest.fixture
def corpus(tokenizer: Tokenizer, tmp_path: Path) -> TokenisedCorpus:
    return tokenise(documents(), "documents", tokenizer.serialised, titles=False, cache=tmp_path)


@pytest.fixture
def make(tokenizer: Tokenizer, backbone: Backbone, corpus: TokenisedCorpus) -> Callable[..., Bench]:
    """A recipe's probes on the held-out documents; in float32, as in training."""

    def build(recipe: dict[str, Any], probes: dict[str, Any] | None = None) -> Bench:
        values = {
            "documents": "c", "output": "o", "model": "scratch:tiny", "max_length": MAX_LENGTH,
            "corruption": "uniform", "objectives": {"masked_lm": 1.0, "bag_of_words": 1.0},
            "probes": probes or {}, **recipe,
        }  # fmt: skip
        settings = PretrainSettings.parse(values, where="test")
        parts = assemble(settings)
        task = PretrainTask(backbone.float(), tokenizer, parts, seed=1).eval()
        if parts.decoder is not None:  # as it starts, a decoder hardly looks at anything
            generator = torch.Generator().manual_seed(0)
            for parameter in parts.decoder.parameters():
                parameter.data += 0.5 * torch.randn(parameter.shape, generator=generator)
        rows = np.setdiff1d(np.arange(len(corpus)), HELD_OUT)
        examples = PretrainExamples(corpus, parts.view, tokenizer, MAX_LENGTH, seed=5, rows=rows)
        held_out = HeldOut(examples, HELD_OUT, documents(), task, settings.probes)
        measured = assemble_probes(settings.probes, parts)
        for probe in measured.values():
            probe.prepare(task, held_out, decides=False)
        return Bench(task, held_out, measured)

    return build


def documents() -> list[Document]:
    return [Document(str(n), text, title) for n, (title, text) in enumerate(DOCUMENTS)]


def alone(batches: list[Batch]) -> list[list[int]]:
    """The ids of every row, without padding."""
    rows = []
    for batch in batches:
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            rows.append(ids[: int(mask.sum())].tolist())
            assert not mask[len(rows[-1]) :].any()
    return rows


def states(backbone: Backbone, ids: list[int]) -> list[Vector]:
    """The hidden states of one text by itself."""
    with torch.no_grad():
        row = torch.tensor([ids])
        found: list[Vector] = backbone(row, torch.ones_like(row))[0].tolist()
    return found


def plain_vector(backbone: Backbone, ids: list[int], vector: str) -> Vector:
    """What stands for a text: its first state, the mean of all, or its lexicon logits."""
    rows = states(backbone, ids)
    if vector == "cls":
        return rows[0]
    if vector == "mean":
        return [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    head = plain_head(backbone)
    regular = [head(row) for row, token in zip(rows, ids, strict=True) if token > 4]
    return [max(column) for column in zip(*regular, strict=True)] if regular else []


def plain_logits(backbone: Backbone, ids: list[int], vector: str) -> Vector:
    found = plain_vector(backbone, ids, vector)
    return found if vector == "lexicon" else plain_head(backbone)(found)


def test_the_texts_are_the_held_out_documents_cropped_once(
    make: Callable[..., Bench], corpus: TokenisedCorpus
) -> None:
    bench = make({})
    rows = alone(bench.held_out.texts)
    lengths = [len(row) for row in rows]
    assert lengths == sorted(lengths), "like beside like"
    expected = [[2, *corpus[row].tokens[: MAX_LENGTH - 2].tolist(), 3] for row in HELD_OUT]
    assert sorted(rows) == sorted(expected)
    assert max(lengths) == MAX_LENGTH


def test_masked_lm(make: Callable[..., Bench], backbone: Backbone) -> None:
    # Whatever the recipe hides, the probe hides uniformly; the same at every evaluation.
    bench = make({"corruption": "whole_word"}, {"measure": {"masked_lm": {"rate": 0.4}}})
    corruption = Uniform(MaskingSettings(rate=0.4))
    head = plain_head(backbone)
    losses: list[float] = []
    for place, ids in enumerate(alone(bench.held_out.texts)):
        row = {"input_ids": torch.tensor([ids]), "keys": torch.tensor([key(0, 2**31, place)])}
        hidden = corruption.prepare(bench.task.step(row))
        seen = states(backbone, hidden["encoder_ids"][0].tolist())
        losses += [
            -log_softmax(head(seen[position]), label)
            for position, label in enumerate(hidden["labels"][0].tolist())
            if label != IGNORED
        ]
    assert len(losses) > 10
    first = bench.measure("masked_lm")
    assert first == {"": pytest.approx(sum(losses) / len(losses), rel=1e-4)}
    assert bench.measure("masked_lm") == first, "other masks would look like progress"


@pytest.mark.parametrize("vector", VECTORS)
def test_bag_of_words_gap(make: Callable[..., Bench], vector: str, backbone: Backbone) -> None:
    bench = make(VECTORS[vector])
    assert bench.held_out.vector == vector
    gaps = []
    for ids in alone(bench.held_out.texts):
        bag = {token for token in ids if token > 4}
        if bag:
            scores = plain_logits(backbone, ids, vector)
            loss = -sum(log_softmax(scores, token) for token in bag) / len(bag)
            gaps.append(loss - math.log(len(bag)))
    assert len(gaps) == len(HELD_OUT) - 1, "one bag is empty"
    found = bench.measure("bag_of_words")
    assert found == {"": pytest.approx(sum(gaps) / len(gaps), rel=1e-4)}


@pytest.mark.parametrize("vector", VECTORS)
def test_coverage(
    make: Callable[..., Bench], corpus: TokenisedCorpus, vector: str, backbone: Backbone
) -> None:
    depths = {"": 5, "at_2": 2, "at_7": 7}
    settings = {"k": 5, "curve": [2, 7]}
    bench = make(VECTORS[vector], {"measure": {"coverage": settings}})
    counts: Counter[int] = Counter()
    for row in set(range(len(corpus))) - set(HELD_OUT.tolist()):
        counts.update({int(token) for token in corpus[row].tokens if token > 4})
    frequent = sorted(counts, key=lambda token: (-counts[token], token))
    sums: dict[str, float] = defaultdict(float)
    texts = 0
    for ids in alone(bench.held_out.texts):
        bag = {token for token in ids if token > 4}
        if not bag:
            continue
        texts += 1
        scores = plain_logits(backbone, ids, vector)
        named = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        for place, k in depths.items():
            after = f"_{place}" if place else ""
            sums[place] += len(bag & set(named[:k])) / len(bag)
            sums[f"constant{after}"] += len(bag & set(frequent[:k])) / len(bag)
            sums[f"ceiling{after}"] += min(k, len(bag)) / len(bag)
    found = bench.measure("coverage")
    assert found == {name: pytest.approx(total / texts) for name, total in sums.items()}
    assert found["ceiling"] < 1, "some texts have more than k tokens"
    assert 0 < found["constant"] < found["ceiling"]


def test_coverage_of_more_tokens_than_there_are(make: Callable[..., Bench]) -> None:
    found = make({}, {"measure": {"coverage": {"k": 10_000}}}).measure("coverage")
    assert found == {"": 1.0, "constant": pytest.approx(1.0), "ceiling": 1.0}


@pytest.mark.parametrize("view", [{}, PAIRS], ids=["same", "pairs"])
@pytest.mark.parametrize(
    "recipe", [AUTOENCODING, LEXMAE, ENHANCED, CONDENSER],
    ids=["autoencoding", "lexmae", "enhanced", "condenser"],
)  # fmt: skip
def test_use_of_the_bottleneck(
    make: Callable[..., Bench],
    monkeypatch: pytest.MonkeyPatch,
    recipe: dict[str, Any],
    view: dict[str, Any],
) -> None:
    bench = make({**recipe, **view})
    task, (batch,) = bench.task, bench.held_out.steps
    decode = task.decode
    seen: list[Step] = []

    def spy(step: Step) -> Step:
        seen.append(step)
        return decode(step)

    monkeypatch.setattr(task, "decode", spy)
    found = bench.measure("bottleneck")
    assert len(seen) == 2
    rows = len(batch["keys"])
    count = len(HELD_OUT)
    assert rows == count * (2 if view else 1)
    vectors = seen[0]["bottleneck"]
    own_row = recipe is CONDENSER  # it condenses the row's own text, also of a pair
    for name, step in zip(("true", "shuffled"), seen, strict=True):
        losses = []
        for row in range(rows):
            source = row if own_row else int(batch["partner"][row])
            given = step["bottleneck"][source]
            origins = [n for n, vector in enumerate(vectors) if torch.equal(vector, given)]
            if name == "true":
                assert source in origins
            else:
                assert origins
                assert row % count not in {n % count for n in origins}, "another document's"
            losses += lone_losses(task, decode, step, row, given)
        assert found[name] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert found[""] == pytest.approx(found["shuffled"] - found["true"])
    assert abs(found[""]) > 1e-4, "the vectors differ, so must the losses"


def lone_losses(
    task: PretrainTask,
    decode: Callable[[Step], Step],
    step: Step,
    row: int,
    vector: torch.Tensor,
) -> list[float]:
    """The losses of one row of a step, decoded by itself, without padding."""
    length = int(step["attention_mask"][row].sum())
    lone = {
        name: value[row : row + 1, :length] if value.dim() > 1 else value[row : row + 1]
        for name, value in step.fields.items()
        if name not in ("tokens", "regular", *PLACES.values())  # places in the whole batch
    }
    lone |= {"partner": torch.tensor([0]), "bottleneck": vector[None]}
    with torch.no_grad():
        decoded = decode(task.step(lone))
    assert decoded.prediction is not None
    logits = decoded.prediction.logits().double().tolist()
    targets = decoded["decoder_targets"].tolist()
    return [-log_softmax(scores, target) for scores, target in zip(logits, targets, strict=True)]


@pytest.mark.parametrize("asked", [True, False])
def test_the_true_bottleneck_is_what_training_computes(
    asked: bool, make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not asked:  # places that hold no label are not counted
        monkeypatch.setattr("isthmus.pretraining.step.SYNCHRONOUS", frozenset())
    bench = make({**AUTOENCODING, **PAIRS})
    (batch,) = bench.held_out.steps
    prepared = bench.task.prepare(batch)
    with torch.no_grad():
        total = bench.task(prepared)["reconstruction"]
    mean = float(total / bench.task.counts(prepared)["reconstruction"])
    assert bench.measure("bottleneck")["true"] == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("query", ["title", "sentence"])
def test_retrieval(
    make: Callable[..., Bench], tokenizer: Tokenizer, vector: str, query: str, backbone: Backbone
) -> None:
    bench = make(VECTORS[vector], {"measure": {"retrieval": {"query": query, "terms": TERMS}}})
    queries, passages = alone(bench.retrieval.queries), alone(bench.retrieval.passages)
    if query == "title":
        titles = [tokenizer.backend.encode(DOCUMENTS[row][0]).ids for row in sorted(HELD_OUT)]
        assert queries == titles
    # What a query wants: the passage made of the same document, or any of the same title.
    groups = queries if query == "title" else [[n] for n in range(len(queries))]

    size = len(bench.task.backbone.word_embeddings)

    def weights(ids: list[int]) -> Vector:
        found = plain_vector(backbone, ids, vector)
        if vector == "lexicon":
            least = sorted(found)[-TERMS] if found else 0.0
            kept = [logit if logit >= least else 0.0 for logit in found] or [0.0] * size
            return [math.log1p(max(logit, 0.0)) for logit in kept]
        return found

    asked, shown = [weights(ids) for ids in queries], [weights(ids) for ids in passages]
    reciprocal = []
    for number, one in enumerate(asked):
        scores = [sum(x * y for x, y in zip(one, other, strict=True)) for other in shown]
        wanted = [group == groups[number] for group in groups]
        best = max(score for score, right in zip(scores, wanted, strict=True) if right)
        before = sum(
            score >= best - 1e-6 * abs(best) and not right
            for score, right in zip(scores, wanted, strict=True)
        )
        reciprocal.append(1 / (1 + before) if before < 10 else 0.0)
    assert len(reciprocal) >= 4
    found = bench.measure("retrieval")
    assert found == {"": pytest.approx(sum(reciprocal) / len(reciprocal))}


def test_titles_that_are_equal_want_each_others_texts(make: Callable[..., Bench]) -> None:
    bench = make({}, {"measure": {"retrieval": {"query": "title"}}})
    titles = [DOCUMENTS[row][0] for row in sorted(HELD_OUT)]
    for one, group in zip(titles, bench.retrieval.groups, strict=True):
        same = bench.retrieval.groups == group
        assert same.tolist() == [other == one for other in titles]


def test_the_vector_can_be_chosen(make: Callable[..., Bench]) -> None:
    measured = {}
    for vector in ("auto", "cls", "mean", "lexicon"):
        bench = make(MEAN, {"vector": vector})
        measured[vector] = bench.measure("bag_of_words")[""]
    assert measured["auto"] == measured["mean"]
    assert len({round(value, 6) for value in measured.values()}) == 3


def test_mean_reciprocal_rank() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    assert mean_reciprocal_rank(scores, torch.eye(3).bool()) == pytest.approx(
        (1 + 1 / 2 + 1 / 3) / 3
    )
    assert mean_reciprocal_rank(scores, torch.eye(3).bool(), depth=2) == pytest.approx(0.5)
    # Any passage of a query's group will do, and none of them is in the way of another.
    wanted = torch.tensor([[False, True, True], [True, True, False], [False, False, True]])
    assert mean_reciprocal_rank(scores, wanted) == pytest.approx((1 / 2 + 1 + 1 / 3) / 3)
    # Of equal scores the wanted one comes last.
    equal = torch.tensor([[2.0, 2.0, 2.0, 0.0]])
    assert mean_reciprocal_rank(equal, torch.tensor([[True, False, False, False]])) == (
        pytest.approx(1 / 3)
    )


@pytest.mark.parametrize("score", [0.0, 1.0, math.nan, math.inf])
def test_a_collapsed_vector_finds_nothing(score: float) -> None:
    for size, expected in ((11, 0.0), (10, 1 / 10)):
        scores = torch.full((size, size), score)
        assert mean_reciprocal_rank(scores, torch.eye(size).bool()) == pytest.approx(expected)
