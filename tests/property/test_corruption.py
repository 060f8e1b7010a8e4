"""What must hold for any batch of texts, whichever tokens they have."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.pretrain.corruption.uniform import Uniform
from isthmus.pretrain.corruption.whole_word import WholeWord
from isthmus.pretrain.masking import IGNORED, MaskingSettings
from isthmus.pretrain.parts import Corruption, Text, Vocabulary
from isthmus.pretrain.randomness import draw, key
from isthmus.pretrain.step import PretrainExamples
from isthmus.text.new_tokenizer import new_tokenizer
from isthmus.training.task import Batch

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog again"] * 2, 90)
VOCABULARY = Vocabulary(TOKENIZER, size=len(TOKENIZER) + 6)
SPECIAL = set(TOKENIZER.special_ids.tolist())
REGULAR = TOKENIZER.regular_ids.tolist()
CORRUPTIONS = [Uniform, WholeWord]


@dataclass(frozen=True)
class OneText:
    tokens: tuple[int, ...]
    words: tuple[int, ...]
    document: int

    def example(self, epoch: int = 0, seed: int = 0) -> tuple[Text, int]:
        text = Text(np.array(self.tokens, np.int32), np.array(self.words, np.int32))
        return text, key(seed, epoch, self.document)


@st.composite
def texts(drawn: st.DrawFn) -> OneText:
    """Words of one to six tokens; now and then a special token that the user typed as text."""
    sizes = drawn(st.lists(st.integers(1, 6), max_size=14))
    tokens = drawn(
        st.lists(
            st.sampled_from(REGULAR) | st.sampled_from([1, *REGULAR, 4]),
            min_size=sum(sizes),
            max_size=sum(sizes),
        )
    )
    first = drawn(st.integers(0, 3))
    words = [first + word for word, size in enumerate(sizes) for _ in range(size)]
    return OneText(tuple(tokens), tuple(words), drawn(st.integers(0, 10_000)))


BATCHES = st.lists(texts(), min_size=1, max_size=5)
RATES = st.sampled_from([0.15, 0.3, 0.5]) | st.floats(0.01, 0.99)
KINDS = st.sampled_from(CORRUPTIONS)


def collated(batch: list[tuple[Text, int]]) -> Batch:
    examples = PretrainExamples.__new__(PretrainExamples)
    examples.prefix, examples.suffix = TOKENIZER.prefix, TOKENIZER.suffix
    examples.pad_id = TOKENIZER.pad_id
    return examples.collate(batch)


def corrupt(
    kind: type[Corruption], batch: list[tuple[Text, int]], rate: float, shares: str = "0.8 0.1"
) -> tuple[Batch, Batch]:
    mask, random = map(float, shares.split())
    masking = MaskingSettings(rate=rate, mask_share=mask, random_share=random)
    given_batch = collated(batch)
    return given_batch, kind(masking)(given_batch, VOCABULARY)


def budget(available: int, rate: float) -> int:
    """Of methods: round(rate · n), at least 1 where there is one; Python rounds half to even."""
    return min(max(round(rate * available), 1), available)


@settings(deadline=None)
@given(KINDS, BATCHES, RATES)
def test_nothing_is_lost_and_nothing_else_touched(
    kind: type[Corruption], batch: list[OneText], rate: float
) -> None:
    before, after = corrupt(kind, [text.example() for text in batch], rate)
    assert set(after) == {"encoder_ids", "labels"}
    ids, hidden, labels = before["input_ids"], after["encoder_ids"], after["labels"]
    chosen = labels != IGNORED
    assert torch.equal(labels[chosen], ids[chosen])
    assert torch.equal(hidden[~chosen], ids[~chosen])
    assert not chosen[before["attention_mask"] == 0].any()
    assert not set(labels[chosen].tolist()) & SPECIAL
    replaced = set(hidden[chosen].tolist()) - {VOCABULARY.mask_id}
    assert not replaced & SPECIAL
    assert max(replaced, default=0) < len(TOKENIZER), "rows beyond the tokens are no tokens"


@settings(deadline=None)
@given(BATCHES, RATES)
def test_uniform_spends_exactly_its_budget(batch: list[OneText], rate: float) -> None:
    _, after = corrupt(Uniform, [text.example() for text in batch], rate)
    for text, labels in zip(batch, after["labels"], strict=True):
        available = sum(token not in SPECIAL for token in text.tokens)
        assert (labels != IGNORED).sum() == budget(available, rate)


@pytest.mark.parametrize(
    ("available", "rate", "expected"),
    [(5, 0.3, 2), (15, 0.3, 4), (25, 0.3, 8), (95, 0.3, 28), (1, 0.15, 1), (0, 0.3, 0)],
)
def test_halves_round_to_even_in_float64(available: int, rate: float, expected: int) -> None:
    text = OneText(tuple(REGULAR[:1] * available), tuple(range(available)), 1)
    _, after = corrupt(Uniform, [text.example()], rate)
    assert (after["labels"] != IGNORED).sum() == expected


@settings(deadline=None)
@given(BATCHES, RATES)
def test_whole_words_are_taken_in_random_order_skipping_what_does_not_fit(
    batch: list[OneText], rate: float
) -> None:
    examples = [text.example() for text in batch]
    _, after = corrupt(WholeWord, examples, rate)
    start = len(TOKENIZER.prefix)
    for (text, drawn), labels in zip(examples, after["labels"].tolist(), strict=True):
        places: dict[int, list[int]] = {}
        for place, (token, word) in enumerate(zip(text.tokens, text.words, strict=True)):
            if token not in SPECIAL:
                places.setdefault(int(word - text.words.min()), []).append(start + place)
        left = budget(sum(map(len, places.values())), rate)
        numbers = draw(torch.tensor([drawn]), 3, max(places, default=0) + 2)[0].tolist()
        expected: set[int] = set()
        for word in sorted(places, key=lambda word: numbers[word + 1]):
            if len(places[word]) <= left:
                left -= len(places[word])
                expected |= set(places[word])
        assert {place for place, label in enumerate(labels) if label != IGNORED} == expected


@settings(deadline=None)
@given(KINDS, BATCHES, RATES, st.randoms())
def test_masks_depend_on_the_document_alone(
    kind: type[Corruption], batch: list[OneText], rate: float, random: Random
) -> None:
    examples = [text.example() for text in batch]
    _, together = corrupt(kind, examples, rate)
    order = list(range(len(batch)))
    random.shuffle(order)
    _, shuffled = corrupt(kind, [examples[row] for row in order], rate)
    wide = OneText(tuple(REGULAR[:1] * 90), tuple(range(90)), 7).example()
    _, padded = corrupt(kind, [wide, *examples], rate)
    for field in ("labels", "encoder_ids"):
        for place, row in enumerate(order):
            assert torch.equal(shuffled[field][place], together[field][row])
        width = together[field].shape[1]
        assert torch.equal(padded[field][1:, :width], together[field])
        for row, example in enumerate(examples):
            _, alone = corrupt(kind, [example], rate)
            width = alone[field].shape[1]
            assert torch.equal(alone[field][0], together[field][row, :width])


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_masks_change_with_epoch_seed_and_document(kind: type[Corruption]) -> None:
    text = OneText(tuple(REGULAR[:40]), tuple(range(40)), 3)
    other = OneText(text.tokens, text.words, 4)
    variants = [text.example(), text.example(epoch=1), text.example(seed=1), other.example()]
    _, after = corrupt(kind, variants, 0.3)
    for field in ("labels", "encoder_ids"):
        assert len({tuple(row.tolist()) for row in after[field]}) == len(variants)
    _, again = corrupt(kind, [text.example()], 0.3)
    assert torch.equal(again["labels"][0], after["labels"][0])


def many_texts() -> list[tuple[Text, int]]:
    tokens = REGULAR[5:45]
    words = [word for word in range(20) for _ in range(2)]
    return [OneText(tuple(tokens), tuple(words), n).example() for n in range(2000)]


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("shares", ["0.8 0.1", "0.5 0.5", "1.0 0.0", "0.0 0.0"])
def test_shares_of_mask_random_and_unchanged(kind: type[Corruption], shares: str) -> None:
    before, after = corrupt(kind, many_texts(), 0.3, shares)
    mask, random = map(float, shares.split())
    chosen = after["labels"] != IGNORED
    hidden, original = after["encoder_ids"][chosen], before["input_ids"][chosen]
    amount = len(hidden)
    assert amount == 2000 * 12
    masked = hidden == VOCABULARY.mask_id
    # A random token is the original one in 1 of |regular| cases.
    changed = ~masked & (hidden != original)
    expected = random * (1 - 1 / len(REGULAR))
    bound = 5 * (0.25 / amount) ** 0.5
    assert masked.double().mean().item() == pytest.approx(mask, abs=bound)
    assert changed.double().mean().item() == pytest.approx(expected, abs=bound)
    if random:
        counts = torch.bincount(hidden[changed], minlength=VOCABULARY.size)[REGULAR]
        mean = changed.sum() / len(REGULAR)
        assert (counts > 0).all(), "every regular token is drawn"
        assert (counts - mean).abs().max() < 6 * mean**0.5


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_every_position_is_equally_likely(kind: type[Corruption]) -> None:
    _, after = corrupt(kind, many_texts(), 0.3)
    share = (after["labels"][:, 1:-1] != IGNORED).double().mean(0)
    assert (share - 0.3).abs().max() < 5 * (0.21 / 2000) ** 0.5
    pairs = (after["labels"][:, 1:-1] != IGNORED).double()
    if kind is Uniform:  # the choice of one token tells next to nothing about another
        correlation = torch.corrcoef(pairs.T) - torch.eye(40)
        assert correlation.abs().max() < 0.15
    else:
        assert torch.equal(pairs[:, 0::2], pairs[:, 1::2])
