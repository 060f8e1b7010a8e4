"""What is drawn on a GPU is what is drawn on a CPU, for the same seed."""

from __future__ import annotations

import pytest
import torch

from isthmus.nn.randomness import draw, draw_bits, key, normal, uniform
from isthmus.pretraining.corruption import (
    Corruption,
    Importance,
    ImportanceSettings,
    MaskingSettings,
    Nested,
    NestedSettings,
    Uniform,
    WholeWord,
)
from isthmus.pretraining.decoders import visibility
from isthmus.pretraining.step import Step, Vocabulary
from isthmus.text.tokenizer import new_tokenizer
from isthmus.training.task import Batch

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog again"] * 2, 90)
VOCABULARY = Vocabulary(TOKENIZER, size=len(TOKENIZER) + 3)
DEVICES = [
    # The twin that always runs: the same draws twice, so that nothing is left of a hidden state.
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    ),
]
CORRUPTIONS: list[Corruption] = [
    Uniform(MaskingSettings()),
    WholeWord(MaskingSettings()),
    Importance(ImportanceSettings(), "decoder"),
    Nested(NestedSettings(), "decoder"),
]


def batch(texts: int = 64, length: int = 150) -> Batch:
    generator = torch.Generator().manual_seed(5)
    regular = torch.from_numpy(TOKENIZER.regular_ids)
    ids = regular[torch.randint(len(regular), (texts, length), generator=generator)]
    ids[:, 0], ids[:, -1] = TOKENIZER.prefix[0], TOKENIZER.suffix[0]
    words = (torch.rand(texts, length, generator=generator) < 0.6).cumsum(1)
    words = words - words[:, 1:2]
    words[:, 0] = words[:, -1] = -1
    pmi = torch.randn(texts, length, 3, generator=generator)
    made = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "words": words,
        "keys": torch.tensor([key(1, 2, row) for row in range(texts)]),
        "pmi": pmi,
    }
    return {**made, **Uniform(MaskingSettings()).prepare(Step(made, VOCABULARY))}


def moved(values: Batch, device: str) -> Batch:
    return {name: value.to(device) for name, value in values.items()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda part: type(part).__name__)
def test_masks(corruption: Corruption, device: str) -> None:
    here = corruption.prepare(Step(batch(), VOCABULARY))
    there = corruption.prepare(Step(moved(batch(), device), VOCABULARY.to(device)))
    VOCABULARY.to("cpu")
    for name, value in here.items():
        same = (value == there[name].cpu()).double().mean()
        # PMI masking adds noise to floats: two almost equal tokens may change places.
        assert same == 1 or (isinstance(corruption, Importance) and same > 0.9999), name


@pytest.mark.parametrize("device", DEVICES)
def test_visibility(device: str) -> None:
    values = batch()
    arguments = values["keys"], values["words"], values["attention_mask"].bool()
    here = visibility(*arguments, 0.5)
    there = visibility(*(value.to(device) for value in arguments), 0.5)
    assert torch.equal(here, there.cpu())


@pytest.mark.parametrize("device", DEVICES)
def test_numbers(device: str) -> None:
    keys = batch()["keys"]
    assert torch.equal(draw_bits(keys, 3, 200), draw_bits(keys.to(device), 3, 200).cpu())
    here, there = (draw(where, 3, 200) for where in (keys, keys.to(device)))
    assert torch.equal(here, there.cpu())
    assert torch.equal(uniform(here), uniform(there).cpu())
    torch.testing.assert_close(normal(here), normal(there).cpu())
