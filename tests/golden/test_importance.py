"""Importance: AMI from n-grams counted by hand; the top floor(rate · n) of a text are hidden."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import tokenised

from isthmus.pretraining.corruption import Importance, ImportanceSettings, importance
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.step import IGNORED, Step, Vocabulary
from isthmus.pretraining.views import Same, SameSettings
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

# Repeated phrases, words of several pieces, an unknown letter that cuts its neighbours apart,
# one token, nothing.
TEXTS = [
    "the cat sat on the mat the dog ran to the end the cat sat on the mat",
    "the dog sat on the mat ж the cat ran to the end of it all the cat sat",
    "catx sat dogy ran to catx sat dogy on the end",
    "cat",
    "",
    "ж ж",
    "the cat sat",
]
UNKNOWN = 1


@pytest.fixture
def corpus(tokenizer: Tokenizer, tmp_path: Path) -> TokenisedCorpus:
    return tokenised(TEXTS, tokenizer, tmp_path)


def ngrams(tokens: list[int], size: int) -> list[tuple[int, ...] | None]:
    """The n-gram that begins at each place; None where it would leave the text or be special."""
    found = [tuple(tokens[place : place + size]) for place in range(len(tokens))]
    return [gram if len(gram) == size and UNKNOWN not in gram else None for gram in found]


def plain_importance(
    documents: list[list[int]], texts: list[list[int]], minimum: int
) -> list[list[float]]:
    """AMI of every token of every text, by n-grams counted in the documents."""
    counts = {
        size: Counter(gram for tokens in documents for gram in ngrams(tokens, size) if gram)
        for size in (1, 2, 3, 4)
    }
    totals = {size: sum(counter.values()) for size, counter in counts.items()}

    def information(gram: tuple[int, ...]) -> float:
        size = len(gram)
        if counts[size][gram] < minimum:
            return 0.0
        value = math.log(counts[size][gram] / totals[size])
        return value - sum(math.log(counts[1][token,] / totals[1]) for token in gram)

    results = []
    for tokens in texts:
        grams = {size: ngrams(tokens, size) for size in (2, 3, 4)}
        scores = []
        for place in range(len(tokens)):
            begin = [grams[size][place] for size in (2, 3, 4)]
            end = [grams[n][place - n + 1] for n in (2, 3, 4) if place - n + 1 >= 0]
            sides = [[information(gram) for gram in side if gram] for side in (begin, end)]
            scores.append(sum(sum(side) / len(side) for side in sides if side))
        results.append(scores)
    return results


def batch_of(
    part: Importance, corpus: TokenisedCorpus, tokenizer: Tokenizer, crop: str, epoch: int = 0
) -> Batch:
    columns = part.columns(corpus, tokenizer)
    view = Same(SameSettings.parse({"crop": crop}, "test"))
    examples = PretrainExamples(corpus, view, tokenizer, max_length=14, seed=1, columns=columns)
    return examples.collate([examples[epoch, row] for row in range(len(corpus))])


def settings(**values: float) -> ImportanceSettings:
    return ImportanceSettings.parse(values, "test")


@pytest.mark.parametrize("crop", ["head", "random"])
@pytest.mark.parametrize("minimum", [1, 2, 3])
def test_the_top_by_importance_is_hidden(
    crop: str,
    minimum: int,
    corpus: TokenisedCorpus,
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
) -> None:
    part = Importance(settings(sigma=0, rate=0.45, minimum_count=minimum), "decoder")
    batch = batch_of(part, corpus, tokenizer, crop)
    lengths = (batch["attention_mask"].sum(1) - 2).tolist()
    documents = [document.tokens.tolist() for document in corpus]
    texts = [
        ids[1 : length + 1]
        for ids, length in zip(batch["input_ids"].tolist(), lengths, strict=True)
    ]
    assert any(len(text) < len(document) for text, document in zip(texts, documents, strict=True))
    maskable = ~vocabulary.is_special(batch["input_ids"])
    scores = importance(batch["pmi"], maskable)
    chosen = part.prepare(Step(batch, vocabulary))["decoder_labels"] != IGNORED
    for row, expected in enumerate(plain_importance(documents, texts, minimum)):
        regular = [place for place, token in enumerate(texts[row]) if token != UNKNOWN]
        for place in regular:
            assert scores[row, place + 1].item() == pytest.approx(expected[place], abs=1e-5)
        amount = min(max(math.floor(0.45 * len(regular)), 1), len(regular))
        # float32 decides between equals; the sums agree whichever it takes.
        best = sorted((expected[place] for place in regular), reverse=True)[:amount]
        taken = [expected[place - 1] for place in chosen[row].nonzero().flatten().tolist()]
        assert sorted(taken, reverse=True) == pytest.approx(best, abs=1e-5)


def text(tokens: int, scores: list[float] | None = None, rows: int = 1) -> Batch:
    """Rows of one text whose 2-grams have PMI as given, longer ones none at all."""
    ids = torch.tensor([[2, *range(5, 5 + tokens), 3]] * rows)
    pmi = torch.full((rows, tokens + 2, 3), torch.nan)
    if scores is not None:
        pmi[:, 1:tokens, 0] = torch.tensor(scores)
    return {"input_ids": ids, "keys": torch.arange(rows), "pmi": pmi}


def chosen_by(chosen: ImportanceSettings, batch: Batch, vocabulary: Vocabulary) -> torch.Tensor:
    part = Importance(chosen)
    return part.choose(part.draw(Step(batch, vocabulary)))


@pytest.mark.parametrize(
    ("tokens", "rate", "amount"),
    [(1, 0.5, 1), (3, 0.5, 1), (5, 0.5, 2), (10, 0.29, 2), (50, 0.58, 29), (40, 0.99, 39)],
)
def test_the_budget_is_the_floor(
    tokens: int, rate: float, amount: int, vocabulary: Vocabulary
) -> None:
    # 50 · 0.58 is 28.999999999999996 in binary.
    chosen = chosen_by(settings(rate=rate), text(tokens), vocabulary)
    assert chosen.sum() == amount


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_noise_is_normal_with_sigma_around_the_importance(
    sigma: float, vocabulary: Vocabulary
) -> None:
    # PMI(ab) = 1 and PMI(bc) = 0, so AMI is 1, 1 and 0; one of the three is hidden.
    batch = text(3, [1.0, 0.0], rows=20_000)
    chosen = chosen_by(settings(sigma=sigma, rate=0.4), batch, vocabulary)
    assert (chosen.sum(1) == 1).all()
    found = chosen.double().mean(0)[1:4].tolist()
    assert found == pytest.approx(shares([1.0, 1.0, 0.0], sigma), abs=5 * (0.25 / 20_000) ** 0.5)


def shares(means: list[float], sigma: float) -> list[float]:
    """How likely each of independent normal numbers is the largest, by a plain sum."""
    results = []
    for own, mean in enumerate(means):
        total = 0.0
        for number in np.arange(-8, 8, 0.01):
            value = mean + sigma * number
            density = math.exp(-number * number / 2) / math.sqrt(2 * math.pi) * 0.01
            for other, low in enumerate(means):
                if other != own:
                    density *= 0.5 * (1 + math.erf((value - low) / sigma / math.sqrt(2)))
            total += density
        results.append(total)
    return results


def test_without_noise_every_epoch_hides_the_same(vocabulary: Vocabulary) -> None:
    batch = text(6, [0.5, 3.0, 0.1, 0.2, 2.0], rows=9)
    chosen = chosen_by(settings(sigma=0), batch, vocabulary)
    assert len({tuple(row) for row in chosen.tolist()}) == 1
    noisy = chosen_by(settings(sigma=1), batch, vocabulary)
    assert len({tuple(row) for row in noisy.tolist()}) > 1
