"""One step of every pre-training recipe, all parts together: its loss written out as loops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.factories import tokenised
from tests.golden.loops import log_softmax, plain_head, plain_reconstruction

from isthmus.config import resolve, shipped_recipes
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.step import IGNORED
from isthmus.pretraining.task import PretrainTask
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

Vector = list[float]
NAMES = [recipe.name for recipe in shipped_recipes("pretrain")]
PAIRED = ("bow-neighbours", "bow-pmi-neighbours", "cocondenser", "cotmae")
TEXTS = [
    "the cat sat on the mat. the dog ran to the end. a cat sat on a dog. the mat ran.",
    "dog ran to xyz. the end to the cat. on the mat the cat sat.",
]
SPECIAL = (0, 1, 2, 3, 4)


@pytest.fixture
def make(backbone: Backbone, tokenizer: Tokenizer, tmp_path: Path) -> Any:
    """The task of a recipe in float64, and a batch as training gives it."""

    def build(name: str, **more: Any) -> tuple[PretrainTask, Batch]:
        overrides: dict[str, Any] = {"max_length": 16, **more}
        if name in PAIRED:
            overrides["view.span"] = 10
        if name == "simlm":
            backbone.save(tmp_path)
            tokenizer.save(tmp_path)
            overrides["corruption.generator"] = str(tmp_path)
        flags = {"documents": "c", "output": "o", "model": "m"}
        settings = PretrainSettings.parse(resolve("pretrain", name, flags, overrides), name)
        parts = assemble(settings)
        corpus = tokenised(TEXTS, tokenizer, tmp_path)
        columns = parts.columns(corpus, tokenizer)
        task = PretrainTask(backbone, tokenizer, parts).double()
        torch.manual_seed(5)
        for module in (task.bottleneck, task.decoder, task.heads):  # far from their start
            for parameter in module.parameters() if module is not None else ():
                parameter.data += 0.3 * torch.randn_like(parameter)
        examples = PretrainExamples(corpus, parts.view, tokenizer, 16, 5, columns)
        return task, task.prepare(examples.collate([examples[0, row] for row in range(2)]))

    return build


class Loops:
    """What a recipe's parts compute, from the ids of its batch and the weights of its model."""

    def __init__(self, task: PretrainTask, batch: Batch, head: Callable[[Vector], Vector]) -> None:
        self.task, self.head = task, head
        self.texts = [
            row[: int(mask.sum())]
            for row, mask in zip(batch["input_ids"].tolist(), batch["attention_mask"], strict=True)
        ]
        found = task.backbone.model(
            batch.get("encoder_ids", batch["input_ids"]),
            batch["attention_mask"],
            output_hidden_states=True,
        ).hidden_states
        self.states: list[list[Vector]] = found[-1].tolist()
        vectors = torch.tensor([self.vector(row) for row in range(len(self.texts))])
        halves = len(self.texts) // task.parts.view.rows
        partner = [(row + halves) % len(self.texts) for row in range(len(self.texts))]
        self.partner = partner if task.parts.view.rows == 2 else list(range(len(self.texts)))
        self.step = task.step(batch) | {
            "bottleneck": vectors.double(),
            "middle_states": found[task.backbone.depth // 2],
            "partner": torch.tensor(self.partner),
        }

    def regular(self, row: int) -> list[int]:
        """The places of ordinary tokens."""
        return [n for n, token in enumerate(self.texts[row]) if token not in SPECIAL]

    def vector(self, row: int) -> Vector:
        """The bottleneck."""
        first, part = self.states[row][0], self.task.bottleneck
        if type(part).__name__ == "ProjectedCls":
            weight, bias = part.projection.weight.tolist(), part.projection.bias.tolist()
            rows = zip(weight, bias, strict=True)
            return [sum(w * x for w, x in zip(line, first, strict=True)) + b for line, b in rows]
        if type(part).__name__ != "Lexicon":
            return first
        logits = [self.head(self.states[row][place]) for place in self.regular(row)]
        largest = [max(column) for column in zip(*logits, strict=True)]
        form = part.settings.form
        weights = [math.exp(x) if form == "softmax" else math.log1p(max(x, 0)) for x in largest]
        words = self.task.backbone.word_embeddings.tolist()
        mixed = [
            sum(w * word[n] for w, word in zip(weights, words, strict=True)) / sum(weights)
            for n in range(len(first))
        ]
        layer = self.task.backbone.encoder.embeddings
        added = layer.position_embeddings.weight[0] + layer.token_type_embeddings.weight[0]
        normed: Vector = layer.LayerNorm(torch.tensor(mixed).double() + added).tolist()
        return normed

    def labels(self) -> list[list[int]]:
        """What the decoder must tell."""
        name = type(self.task.decoder).__name__
        if name == "Bidirectional":
            return self.step["decoder_labels"].tolist()
        if name == "Condenser":
            return self.step["labels"].tolist()
        wanted = []
        for text in self.texts:
            plain = [IGNORED if token in SPECIAL else token for token in text]
            following = [*plain[1:-1], text[-1], IGNORED]
            wanted.append(plain if name == "Enhanced" else following)
        longest = len(self.step["input_ids"][0])
        return [row + [IGNORED] * (longest - len(row)) for row in wanted]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {}) for name in NAMES),
        ("cotmae", {"corruption": None, "objectives.masked_lm": False}),  # CoT-MAE's table 3
    ],
)
def test_the_loss_of_a_step(
    name: str,
    more: dict[str, Any],
    make: Callable[..., tuple[PretrainTask, Batch]],
    backbone: Backbone,
) -> None:
    task, batch = make(name, **more)
    loops = Loops(task, batch, plain_head(backbone))
    head, states = loops.head, loops.states
    rows = range(len(loops.texts))

    def cross_entropy(labels: list[list[int]]) -> tuple[float, int]:
        chosen = [(r, n) for r in rows for n, token in enumerate(labels[r]) if token != IGNORED]
        total = sum(log_softmax(head(states[r][n]), labels[r][n]) for r, n in chosen)
        return -total, len(chosen)

    def masked_lm() -> tuple[float, int]:
        return cross_entropy(batch["labels"].tolist())

    def replaced_token() -> tuple[float, int]:
        return cross_entropy(
            [[IGNORED if token in SPECIAL else token for token in text] for text in loops.texts]
        )

    def reconstruction() -> tuple[float, int]:
        labels = loops.labels()
        count = sum(label != IGNORED for row in labels for label in row)
        return plain_reconstruction(backbone, task.decoder, loops.step, torch.tensor(labels)), count

    def bag_of_words() -> tuple[float, int]:
        settings: Any = task.parts.objectives["bag_of_words"].settings
        loss, count = 0.0, 0
        for row in rows:
            other = loops.partner[row] if settings.target == "partner" else row
            bag = {loops.texts[other][place] for place in loops.regular(other)}
            scores = head(states[row][0])
            loss -= sum(log_softmax(scores, token) / len(bag) for token in bag)
            count += bool(bag)
        return loss, count

    def term_frequency() -> tuple[float, int]:
        loss = 0.0
        for row in rows:
            counts = Counter(loops.texts[row][place] for place in loops.regular(row))
            size = math.sqrt(sum(count**2 for count in counts.values()))
            for token, score in enumerate(head(states[row][0])):
                loss += (score - counts[token] / size) ** 2
        return loss, len(rows)

    def span_contrast() -> tuple[float, int]:
        loss = 0.0
        for row in rows:
            dots = {
                other: sum(x * y for x, y in zip(states[row][0], states[other][0], strict=True))
                for other in rows
                if other != row
            }
            total = sum(math.exp(value) for value in dots.values())
            loss -= dots[loops.partner[row]] - math.log(total)
        return loss, len(rows)

    plain = {
        "masked_lm": masked_lm, "replaced_token": replaced_token, "bag_of_words": bag_of_words,
        "reconstruction": reconstruction, "term_frequency": term_frequency,
        "span_contrast": span_contrast,
    }  # fmt: skip
    sums, counts = task(batch), task.counts(batch)
    hidden = "encoder_ids" in batch and not torch.equal(batch["encoder_ids"], batch["input_ids"])
    assert hidden != bool(more)
    for objective in task.parts.objectives:
        expected, count = plain[objective]()
        assert counts[objective].item() == count
        assert sums[objective].item() == pytest.approx(expected, rel=1e-5), objective
