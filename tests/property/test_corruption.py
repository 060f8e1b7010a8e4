"""What must hold for any batch of texts, whichever tokens they have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.nn import randomness
from isthmus.nn.randomness import draw, key, second
from isthmus.pretraining import corruption
from isthmus.pretraining.corruption import (
    SAMPLE_STREAM,
    Corruption,
    Importance,
    Nested,
    Side,
    Uniform,
    WholeWord,
)
from isthmus.pretraining.decoders import VISIBILITY_STREAM
from isthmus.pretraining.examples import Example, PretrainExamples
from isthmus.pretraining.registries import CORRUPTIONS as REGISTERED
from isthmus.pretraining.step import IGNORED, Step, Vocabulary
from isthmus.pretraining.views import (
    CROP_STREAM,
    PAIR_STREAM,
    Neighbours,
    NeighboursSettings,
    Same,
    SameSettings,
    Text,
)
from isthmus.text.tokenizer import new_tokenizer
from isthmus.training.task import Batch

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog again"] * 2, 90)
VOCABULARY = Vocabulary(TOKENIZER, size=len(TOKENIZER) + 6)
SPECIAL = set(TOKENIZER.special_ids.tolist())
REGULAR = TOKENIZER.regular_ids.tolist()
CORRUPTIONS: list[type[Corruption]] = [Uniform, WholeWord, Importance]
FIELDS: dict[Side, tuple[str, str]] = {
    "encoder": ("encoder_ids", "labels"),
    "decoder": ("decoder_ids", "decoder_labels"),
}


@dataclass(frozen=True)
class OneText:
    tokens: tuple[int, ...]
    words: tuple[int, ...]
    document: int

    def example(self, epoch: int = 0, seed: int = 0) -> Example:
        text = Text(np.array(self.tokens, np.int32), np.array(self.words, np.int32))
        drawn = key(seed, epoch, self.document)
        return Example((text, text), ({"pmi": self.pmi()},) * 2, drawn)

    def pmi(self) -> Any:
        """Some number for every n-gram; NaN for those with a special token or behind the end."""
        values = np.full((len(self.tokens), 3), np.nan, np.float32)
        for place in range(len(self.tokens)):
            for size in (2, 3, 4):
                gram = self.tokens[place : place + size]
                if len(gram) == size and not SPECIAL & set(gram):
                    values[place, size - 2] = hash(gram) % 97 / 20 - 2
        return values


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
SIDES = st.sampled_from(["encoder", "decoder"])


def collated(batch: list[Example], pairs: bool = False) -> Batch:
    """Framed and padded; of a pair, the same text twice."""
    view = Neighbours(NeighboursSettings()) if pairs else Same(SameSettings())
    columns = {"pmi": cast(Any, None)}
    examples = PretrainExamples(
        cast(Any, None), view, TOKENIZER, 200, 0, columns, rows=np.arange(0)
    )
    return examples.collate(batch)


def part(
    kind: type[Corruption], rate: float, side: Side = "encoder", shares: str = "0.8 0.1"
) -> Corruption:
    mask, random = map(float, shares.split())
    values = {"rate": rate, "mask_share": mask, "random_share": random}
    return kind(kind.Settings.parse(values, "test"), side)


def prepared(corruption: Corruption, batch: Batch) -> Batch:
    return corruption.prepare(Step(batch, VOCABULARY))


def corrupt(
    kind: type[Corruption],
    batch: list[Example],
    rate: float,
    shares: str = "0.8 0.1",
    side: Side = "encoder",
) -> tuple[Batch, Batch]:
    given_batch = collated(batch)
    return given_batch, prepared(part(kind, rate, side, shares), given_batch)


def budget(available: int, rate: float) -> int:
    """Of methods: round(rate · n), at least 1 where there is one; Python rounds half to even."""
    return min(max(round(rate * available), 1), available)


@settings(deadline=None)
@given(KINDS, BATCHES, RATES, SIDES)
def test_nothing_is_lost_and_nothing_else_touched(
    kind: type[Corruption], batch: list[OneText], rate: float, side: Side
) -> None:
    before, after = corrupt(kind, [text.example() for text in batch], rate, side=side)
    assert tuple(after) == FIELDS[side]
    ids, (hidden, labels) = before["input_ids"], after.values()
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


@settings(deadline=None)
@given(BATCHES, RATES)
def test_importance_spends_the_floor_of_its_rate(batch: list[OneText], rate: float) -> None:
    _, after = corrupt(Importance, [text.example() for text in batch], rate)
    for text, labels in zip(batch, after["labels"], strict=True):
        available = sum(token not in SPECIAL for token in text.tokens)
        # Of decimals: 0.29 · 100 is 29, whatever its binary neighbour says.
        floor = int(rate * available + 1e-9)
        assert (labels != IGNORED).sum() == min(max(floor, 1), available)


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
    before, after = corrupt(WholeWord, examples, rate)
    del before["word_sizes"]  # then there are as many rounds as a text of that length can need
    assert torch.equal(prepared(part(WholeWord, rate), before)["labels"], after["labels"])
    start = len(TOKENIZER.prefix)
    for example, labels in zip(examples, after["labels"].tolist(), strict=True):
        text = example.texts[0]
        places: dict[int, list[int]] = {}
        for place, (token, word) in enumerate(zip(text.tokens, text.words, strict=True)):
            if token not in SPECIAL:
                places.setdefault(int(word - text.words.min()), []).append(start + place)
        left = budget(sum(map(len, places.values())), rate)
        numbers = draw(torch.tensor([example.key]), 3, max(places, default=0) + 2)[0].tolist()
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


@cache
def many_texts() -> list[Example]:
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


@pytest.mark.parametrize("kind", [Uniform, WholeWord])
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


def both_sides(
    encoder: type[Corruption], batch: list[Example], rates: tuple[float, float]
) -> tuple[Batch, Batch]:
    """The encoder's and the nested decoder's side of a batch."""
    before = collated(batch)
    before |= prepared(part(encoder, rates[0]), before)
    return before, prepared(part(Nested, rates[1], "decoder"), before)


@settings(deadline=None)
@given(KINDS, BATCHES, RATES, RATES)
def test_nested_masks_nest(
    kind: type[Corruption], batch: list[OneText], one: float, two: float
) -> None:
    rates = min(one, two), max(one, two)
    before, after = both_sides(kind, [text.example() for text in batch], rates)
    assert tuple(after) == FIELDS["decoder"]
    ids, labels = before["input_ids"], after["decoder_labels"]
    encoder, decoder = before["labels"] != IGNORED, labels != IGNORED
    assert not (encoder & ~decoder).any(), "what the encoder does not see, the decoder does not"
    assert torch.equal(after["decoder_ids"][encoder], before["encoder_ids"][encoder])
    assert torch.equal(after["decoder_ids"][~decoder], ids[~decoder])
    assert torch.equal(labels[decoder], ids[decoder])
    assert not VOCABULARY.is_special(ids[decoder]).any()
    for row, text in enumerate(batch):
        available = sum(token not in SPECIAL for token in text.tokens)
        taken = int(encoder[row].sum())
        assert decoder[row].sum() == max(round(rates[1] * available), taken)


def test_what_nesting_adds_is_uniform_and_hidden_by_shares() -> None:
    before, after = both_sides(Uniform, many_texts(), (0.3, 0.5))
    encoder = before["labels"][:, 1:-1] != IGNORED
    more = (after["decoder_labels"][:, 1:-1] != IGNORED) & ~encoder
    assert (more.sum(1) == 8).all(), "20 of 40 in all, 12 are the encoder's"
    share = more.sum(0) / (~encoder).sum(0)
    assert (share - 0.2 / 0.7).abs().max() < 5 * (0.21 / 1400) ** 0.5
    hidden = after["decoder_ids"][:, 1:-1][more]
    masked = (hidden == VOCABULARY.mask_id).double().mean().item()
    assert masked == pytest.approx(0.8, abs=5 * (0.16 / 16_000) ** 0.5)
    # Streams of its own: what the encoder replaced tells nothing about what is replaced here.
    changed = after["decoder_ids"] != before["encoder_ids"]
    assert torch.equal(changed[:, 1:-1] & ~more, torch.zeros_like(more))


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_the_two_sides_of_a_text_are_independent(kind: type[Corruption]) -> None:
    batch = collated(many_texts())
    if kind is Importance:
        batch["pmi"] = torch.zeros_like(batch["pmi"])  # nothing but noise decides
    chosen, masked = [], []
    for side in FIELDS:
        ids, labels = prepared(part(kind, 0.3, side), batch).values()
        chosen.append((labels[:, 1:-1] != IGNORED).double())
        masked.append(ids[:, 1:-1] == VOCABULARY.mask_id)
    unrelated(chosen[0], chosen[1], 0.3, 0.3)
    both = (chosen[0] * chosen[1]).bool()
    unrelated(masked[0][both].double()[None], masked[1][both].double()[None], 0.8, 0.8)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_the_two_texts_of_a_pair_are_independent(kind: type[Corruption]) -> None:
    examples = many_texts()
    batch = collated(examples, pairs=True)
    batch["pmi"] = torch.zeros_like(batch["pmi"])
    keys = batch["keys"].tolist()
    assert keys == [e.key for e in examples] + [second(e.key) for e in examples]
    assert len(set(keys)) == 4000
    assert batch["partner"].tolist() == [*range(2000, 4000), *range(2000)]
    assert batch["repeated"].all(), "the same text twice"
    ids, labels = prepared(part(kind, 0.3), batch).values()
    chosen = (labels[:, 1:-1] != IGNORED).double()
    unrelated(chosen[:2000], chosen[2000:], 0.3, 0.3)
    masked = (ids[:, 1:-1] == VOCABULARY.mask_id).double()
    both = (chosen[:2000] * chosen[2000:]).bool()
    unrelated(masked[:2000][both][None], masked[2000:][both][None], 0.8, 0.8)


def test_no_two_uses_of_a_key_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = collated(many_texts()[:2])
    used: list[int] = []

    def spy(keys: torch.Tensor, streams: list[int], width: int) -> tuple[torch.Tensor, ...]:
        used.extend(streams)
        return randomness.draw_together(keys, streams, width)

    monkeypatch.setattr(corruption, "draw_together", spy)
    sides: list[set[int]] = []
    for side in FIELDS:
        used.clear()
        for kind in CORRUPTIONS:
            prepared(part(kind, 0.3, side), batch)
        sides.append({*used, part(Uniform, 0.3, side).stream(SAMPLE_STREAM)})
    # Where second keys come from, and what views and the enhanced decoder draw.
    others = {0, CROP_STREAM, PAIR_STREAM, VISIBILITY_STREAM}
    assert len(others) == 4
    assert len(sides[0]) == len(sides[1]) >= 5
    assert not sides[0] & sides[1]
    assert not others & (sides[0] | sides[1])


def unrelated(one: torch.Tensor, two: torch.Tensor, first: float, second: float) -> None:
    """Checks that both happen together as often as chance has it, within five deviations."""
    together = first * second
    # Pieces of one word fall together: half as many draws as tokens.
    bound = 5 * (together * (1 - together) / (one.numel() / 2)) ** 0.5
    assert (one * two).mean().item() == pytest.approx(together, abs=bound)


@pytest.mark.parametrize("kind", [*CORRUPTIONS, Nested])
def test_texts_without_tokens_pass_unharmed(kind: type[Corruption]) -> None:
    empty = [OneText((), (), 1), OneText((1, 4, 1), (0, 1, 2), 2), OneText((), (), 3)]
    batch = collated([text.example() for text in empty])
    batch |= prepared(part(Uniform, 0.3), batch)
    ids, labels = prepared(part(kind, 0.5, "decoder"), batch).values()
    assert torch.equal(ids, batch["input_ids"])
    assert (labels == IGNORED).all()


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in REGISTERED.names() if name != "generator"),
    *(("generator", {"generator": "any", "labels": labels}) for labels in ("all", "chosen")),
]


@pytest.mark.parametrize(("name", "values"), SETTINGS)
@settings(deadline=None, max_examples=60)
@given(BATCHES, KINDS, RATES, st.floats(0, 1), st.booleans())
def test_nothing_labels_more_than_it_says(
    name: str,
    values: dict[str, Any],
    batch: list[OneText],
    encoder: type[Corruption],
    rate: float,
    less: float,
    pairs: bool,
) -> None:
    kind = REGISTERED.load(name)
    before = collated([text.example() for text in batch], pairs)
    first = part(encoder, max(rate * less, 0.001))
    before |= prepared(first, before)
    for side in kind.sides:
        made = kind(kind.Settings.parse({"rate": rate, **values}, "test"), side)
        made.beside(first if side == "decoder" else None)
        step = made.draw(Step(before, VOCABULARY))
        labels = made.labels(step, made.choose(step))
        most = made.most_labels(Step(before, VOCABULARY))
        assert int((labels != IGNORED).sum()) <= most <= len(before["regular"])
        untold = {field: value for field, value in before.items() if field != "regular"}
        assert made.most_labels(Step(untold, VOCABULARY)) is None, "the device is asked"


def test_the_most_that_is_hidden_is_no_less_and_little_more_than_the_budgets() -> None:
    for texts in (1, 3, 10, 100, 1000):
        for available in (*range(25), 95, 510):
            batch = {
                "input_ids": torch.empty(texts, 0),
                "regular": torch.empty(texts * available),
            }
            for percent in range(1, 100):
                rate = percent / 100
                most, all_ = Step(batch, VOCABULARY).budget(rate), texts * budget(available, rate)
                assert most is not None
                assert all_ <= most <= all_ + texts * max(1, 1.5 - rate), (texts, available, rate)
    one_each = {"input_ids": torch.empty(100, 3), "regular": torch.empty(100)}
    assert Step(one_each, VOCABULARY).budget(0.15) == 100
