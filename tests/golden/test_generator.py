"""Generator: masked tokens are sampled from a frozen model's softmax over tokens not special."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus.errors import MismatchError
from isthmus.nn.backbone import Backbone
from isthmus.nn.randomness import draw, uniform
from isthmus.pretraining.corruption import Generator, GeneratorSettings, sample
from isthmus.pretraining.step import IGNORED, Step, Vocabulary
from isthmus.text.tokenizer import Tokenizer, new_tokenizer
from isthmus.training.task import Batch

ROWS = 6000
TOKENS = [7, 1, 12, 40, 45]  # an [UNK] among them


@pytest.fixture
def folder(backbone: Backbone, tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A generator whose matrix is as long as the tokenizer, three rows less than the model's."""
    model = copy.deepcopy(backbone).float()
    model.model.resize_token_embeddings(len(tokenizer))
    model.save(tmp_path)
    tokenizer.save(tmp_path)
    return tmp_path


@pytest.fixture
def generator(folder: Path, backbone: Backbone, tokenizer: Tokenizer) -> Generator:
    return made(folder, backbone, tokenizer)


def made(folder: Path, backbone: Backbone, tokenizer: Tokenizer, **values: Any) -> Generator:
    settings = GeneratorSettings.parse({"generator": str(folder), "rate": 0.5, **values}, "test")
    part = Generator(settings)
    part.beside(None)
    part.build(backbone, tokenizer)
    return part


def batch_of(rows: int) -> Batch:
    ids = torch.tensor([[2, *TOKENS, 3, 0]] * rows)
    return {
        "input_ids": ids, "attention_mask": (ids != 0).long(), "keys": torch.arange(rows) * 77 + 5,
        "words": torch.zeros_like(ids),
    }  # fmt: skip


def plain_sample(logits: list[float], chance: float) -> int:
    highest = max(logits)
    weights = [math.exp(value - highest) for value in logits]
    total = 0.0
    for token, weight in enumerate(weights):
        total += weight / sum(weights)
        if total > chance:
            return token
    raise AssertionError("a chance is below 1")


def test_samples_are_where_the_summed_probability_exceeds_the_chance() -> None:
    source = torch.Generator().manual_seed(4)
    logits = 2 * torch.randn(500, 30, generator=source)
    logits[:, [0, 7, 8, 29]] = -torch.inf
    chances = torch.rand(500, generator=source)
    found = sample(logits, chances).tolist()
    expected = [
        plain_sample(row, chance)
        for row, chance in zip(logits.double().tolist(), chances.tolist(), strict=True)
    ]
    assert found == expected
    assert not {0, 7, 8, 29} & set(found)


def test_the_smallest_and_the_largest_chance_find_a_token() -> None:
    logits = torch.full((2, 9), -torch.inf)
    logits[:, 3:6] = torch.tensor([0.1, 0.7, -0.2])
    assert sample(logits, torch.tensor([0.0, 1 - 2**-24])).tolist() == [3, 5]


def test_each_sample_is_the_one_of_the_plain_loop(
    generator: Generator,
    folder: Path,
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
) -> None:
    batch = batch_of(40)
    found = generator.prepare(Step(batch, vocabulary))
    chosen = generator.choose(generator.draw(Step(batch, vocabulary)))
    assert (chosen.sum(1) == 2).all(), "round(0.5 · 4): [UNK] does not count"
    assert not chosen[vocabulary.is_special(batch["input_ids"])].any()
    masked = torch.where(chosen, tokenizer.mask_id, batch["input_ids"])
    model = Backbone.load(str(folder)).eval()
    with torch.no_grad():
        logits = model.model(masked, batch["attention_mask"]).logits.double().tolist()
    chances = uniform(draw(batch["keys"], 7, masked.shape[1])).tolist()
    regular = tokenizer.regular_ids.tolist()
    expected = batch["input_ids"].clone()
    for row, place in chosen.nonzero().tolist():
        allowed = [logits[row][place][token] for token in regular]
        expected[row, place] = regular[plain_sample(allowed, chances[row][place])]
    assert torch.equal(found["encoder_ids"], expected)


def test_samples_follow_the_softmax_and_are_never_special(
    generator: Generator, folder: Path, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    batch = batch_of(ROWS)
    # Hiding the same two places everywhere makes one distribution for each.
    chosen = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    chosen[:, [1, 4]] = True
    found = generator.hide(generator.draw(Step(batch, vocabulary)), chosen)
    assert torch.equal(found[~chosen], batch["input_ids"][~chosen])
    assert not vocabulary.is_special(found[chosen]).any()
    masked = torch.where(chosen, tokenizer.mask_id, batch["input_ids"])[:1]
    model = Backbone.load(str(folder)).eval()
    with torch.no_grad():
        logits = model.model(masked, batch["attention_mask"][:1]).logits[0].double()
    regular = torch.from_numpy(tokenizer.regular_ids)
    for place in (1, 4):
        expected = logits[place, regular].softmax(0) * ROWS
        counts = torch.bincount(found[:, place], minlength=vocabulary.size)[regular]
        often = expected >= 5
        chi_square = ((counts - expected)[often] ** 2 / expected[often]).sum().item()
        assert often.sum() > 15
        assert chi_square < often.sum() + 6 * (2 * often.sum()) ** 0.5


@pytest.mark.parametrize("kind", ["all", "chosen"])
def test_labels(
    kind: str, folder: Path, backbone: Backbone, tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    part = made(folder, backbone, tokenizer, labels=kind)
    batch = batch_of(5)
    labels = part.prepare(Step(batch, vocabulary))["labels"]
    told = part.choose(part.draw(Step(batch, vocabulary)))
    if kind == "all":
        told = ~vocabulary.is_special(batch["input_ids"])
    assert torch.equal(labels, torch.where(told, batch["input_ids"], IGNORED))


def test_the_generator_is_frozen_and_no_part_of_what_is_trained(
    generator: Generator, vocabulary: Vocabulary
) -> None:
    assert not any(parameter.requires_grad for parameter in generator.model.parameters())
    assert not generator.model.training
    found = generator.prepare(Step(batch_of(3), vocabulary))["encoder_ids"]
    assert torch.equal(found, generator.prepare(Step(batch_of(3), vocabulary))["encoder_ids"])


def test_a_generator_with_other_tokens_is_refused(
    backbone: Backbone, folder: Path, tokenizer: Tokenizer
) -> None:
    other = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 60)
    with pytest.raises(MismatchError, match="another vocabulary") as caught:
        made(folder, backbone, other)
    assert "corruption.generator" in caught.value.what
