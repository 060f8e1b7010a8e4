"""Who sees what: no position sees itself, the past no future, a text no padding, no other text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import WITHOUT_DROPOUT, bert
from transformers import BertForMaskedLM

from isthmus.nn.backbone import Backbone
from isthmus.nn.packing import Packing
from isthmus.nn.randomness import key
from isthmus.pretraining.decoders import Decoder, visibility
from isthmus.pretraining.decoders import window as visible_window
from isthmus.pretraining.registries import DECODERS
from isthmus.pretraining.step import IGNORED, Step, Vocabulary
from isthmus.text.tokenizer import new_tokenizer
from isthmus.training.task import Batch

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog again"] * 2, 90)
VOCABULARY = Vocabulary(TOKENIZER, size=len(TOKENIZER) + 3)
REGULAR = TOKENIZER.regular_ids.tolist()
WIDTH = 8
DECODER_SETTINGS: dict[str, dict[str, Any]] = {
    "bidirectional": {"layers": 2}, "autoregressive": {"window": 3}, "enhanced": {},
    "condenser": {},
}  # fmt: skip
few = settings(max_examples=25)  # each of them tries every position
every_decoder = pytest.mark.parametrize("name", DECODER_SETTINGS)


def make_backbone() -> Backbone:
    torch.manual_seed(3)
    config = bert(
        VOCABULARY.size,
        hidden_size=WIDTH,
        intermediate_size=16,
        initializer_range=0.4,
        **WITHOUT_DROPOUT,
    )
    return Backbone(BertForMaskedLM(config)).double()


BACKBONE = make_backbone()


def make(name: str, **values: Any) -> Decoder:
    kind = DECODERS.load(name)
    decoder: Decoder = kind(kind.Settings.parse(DECODER_SETTINGS[name] | values, where="test"))
    torch.manual_seed(4)
    decoder.build(BACKBONE, TOKENIZER)
    for parameter in decoder.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return decoder.double()


DECODERS_MADE = {name: make(name) for name in DECODER_SETTINGS}


@st.composite
def word_sizes(drawn: st.DrawFn) -> list[int]:
    return drawn(st.lists(st.integers(1, 4), min_size=1, max_size=8))


BATCHES = st.lists(word_sizes(), min_size=1, max_size=4)


def batch_of(sizes: list[list[int]], seed: int = 0, width: int | None = None) -> Batch:
    """Framed texts whose words have the given sizes, padded; a vector and states for each row."""
    random = np.random.default_rng(seed)
    length = width or max(map(sum, sizes)) + 2
    ids = torch.zeros(len(sizes), length, dtype=torch.int64)
    words = torch.full((len(sizes), length), -1)
    for row, each in enumerate(sizes):
        ids[row, 0], ids[row, sum(each) + 1] = 2, 3
        words[row, 1 : sum(each) + 1] = torch.from_numpy(np.repeat(np.arange(len(each)), each))
        ids[row, 1 : sum(each) + 1] = torch.from_numpy(random.choice(REGULAR, sum(each)))
    states = torch.from_numpy(random.normal(size=(len(sizes), 64, WIDTH)))
    regular = ~VOCABULARY.is_special(ids)
    labels = torch.where(regular & (ids % 2 == 0), ids, IGNORED)
    return {
        "input_ids": ids, "attention_mask": (ids != 0).long(), "words": words,
        "keys": torch.tensor([key(seed, 0, row) for row in range(len(sizes))]),
        "partner": torch.arange(len(sizes)), "bottleneck": states[:, 0],
        "middle_states": states[:, :length], "labels": labels,
        "decoder_ids": torch.where(labels != IGNORED, 4, ids), "decoder_labels": labels,
    }  # fmt: skip


def step_of(batch: Batch) -> Step:
    return Step(batch, VOCABULARY, BACKBONE)


@torch.no_grad()
def logits(decoder: Decoder, batch: Batch) -> torch.Tensor:
    """Vocabulary logits at every position."""
    return decoder.head(decoder.decode(step_of(batch)), BACKBONE).logits()


def seen(batch: Batch, rate: float = 0.5) -> torch.Tensor:
    return visibility(batch["keys"], batch["words"], batch["attention_mask"].bool(), rate)


@few
@given(BATCHES, st.integers(0, 99))
def test_enhanced_without_padding(sizes: list[list[int]], seed: int) -> None:
    """As a GPU's kernels take it."""
    batch, decoder = batch_of(sizes, seed), DECODERS_MADE["enhanced"]
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        padded = decoder.decode(step_of(batch))
        patch.setattr(Backbone, "asks_for_some", True)
        patch.setattr(BACKBONE, "packing", lambda mask, tokens: Packing.of(mask, tokens))
        packed = decoder.decode(step_of(batch))
    present = batch["attention_mask"].bool()
    torch.testing.assert_close(packed[present], padded[present])
    assert (packed[~present] == 0).all()


@few
@given(BATCHES, st.integers(0, 99), st.floats(0.05, 0.95))
def test_visibility(sizes: list[list[int]], seed: int, rate: float) -> None:
    batch = batch_of(sizes, seed)
    visible = seen(batch, rate)
    for text, each in enumerate(sizes):
        length = sum(each) + 2
        words = batch["words"][text].tolist()
        for row in range(visible.shape[1]):
            columns = visible[text, row].tolist()
            assert columns[0], "the bottleneck"
            assert not any(columns[length:]), "padding"
            assert row == 0 or not columns[row], "itself"
            assert columns[length - 1] or row == length - 1, "[SEP] is in no sample"
            for word in set(words) - {-1}:
                pieces = {
                    columns[place]
                    for place, other in enumerate(words)
                    if other == word and place != row
                }
                assert len(pieces) <= 1, "a word is hidden whole"


@few
@given(BATCHES, st.integers(0, 99), st.integers(0, 9))
def test_visibility_depends_on_the_text_alone(
    sizes: list[list[int]], seed: int, padding: int
) -> None:
    batch = batch_of(sizes, seed)
    width = batch["words"].shape[1]
    visible = seen(batch)
    wide = seen(batch_of(sizes, seed, width + padding))
    assert torch.equal(wide[:, :width, :width], visible)
    for text, each in enumerate(sizes):
        alone = {name: value[text : text + 1] for name, value in batch.items()}
        length = sum(each) + 2
        for field in ("words", "attention_mask"):
            alone[field] = alone[field][:, :length]
        assert torch.equal(seen(alone)[0], visible[text, :length, :length])
    assert torch.equal(seen(batch), visible)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_every_row_draws_every_word_at_the_rate(rate: float) -> None:
    texts, length = 400, 30
    words = torch.arange(length).repeat(texts, 1)
    keys = torch.tensor([key(5, 0, document) for document in range(texts)])
    visible = visibility(keys, words, torch.ones_like(words, dtype=torch.bool), rate)
    places = torch.arange(length)
    drawn = (places[:, None] != places) & (places != 0)
    hidden = (~visible).double()
    bound = 5 * (rate * (1 - rate) / texts) ** 0.5
    assert (hidden.mean(0)[drawn] - rate).abs().max() < bound, "every row and column"
    assert len({tuple(row.tolist()) for row in visible[0]}) == length, "another sample each"
    # One row tells nothing about the next, nor about the same row of the next text.
    for one, two in [(hidden[:, 5], hidden[:, 6]), (hidden[:-1, 5], hidden[1:, 5])]:
        pairs = (one * two)[:, 7:]
        spread = 5 * (0.25 / pairs.numel()) ** 0.5
        assert pairs.mean().item() == pytest.approx(rate**2, abs=spread)


@few
@given(word_sizes(), st.integers(0, 99), st.data())
def test_enhanced_decoding_does_not_see_the_token_it_rebuilds(
    sizes: list[int], seed: int, data: st.DataObject
) -> None:
    batch = batch_of([sizes, sizes], seed)
    decoder = DECODERS_MADE["enhanced"]
    before = logits(decoder, batch)
    for place in range(1, sum(sizes) + 1):
        changed = dict(batch, input_ids=batch["input_ids"].clone())
        token = data.draw(st.sampled_from([1, *REGULAR]))
        changed["input_ids"][0, place] = token
        after = logits(decoder, changed)
        assert torch.equal(after[0, place], before[0, place])
        assert torch.equal(after[1], before[1]), "another text"
        if token != batch["input_ids"][0, place]:
            sees = seen(batch)[0, :, place]
            differs = (after[0] != before[0]).any(1)
            assert torch.equal(differs, sees), "all others that see it do change"


@pytest.mark.parametrize("window", [None, 1, 2, 5])
@few
@given(word_sizes(), st.integers(0, 99))
def test_the_past_does_not_see_the_future(window: int | None, sizes: list[int], seed: int) -> None:
    decoder = AUTOREGRESSIVE[window]
    batch = batch_of([sizes], seed)
    before = logits(decoder, batch)[0]
    length = len(before)
    for place in range(1, length):
        changed = dict(batch, input_ids=batch["input_ids"].clone())
        changed["input_ids"][0, place] = (batch["input_ids"][0, place] + 1) % len(TOKENIZER)
        differs = (logits(decoder, changed)[0] != before).any(1).tolist()
        last = length if window is None else min(place + window, length)
        assert differs == [place <= row < last for row in range(length)]
    vector = dict(batch, bottleneck=batch["bottleneck"].flip(1))
    assert (logits(decoder, vector)[0] != before).any(1).all(), "slot 0 is seen from everywhere"


AUTOREGRESSIVE = {window: make("autoregressive", window=window) for window in (None, 1, 2, 5)}


def test_a_window_by_hand() -> None:
    expected = ["x....", "xx...", "xxx..", "x.xx.", "x..xx"]
    found = visible_window(5, 2, torch.device("cpu")).tolist()
    assert ["".join("x" if cell else "." for cell in row) for row in found] == expected


@every_decoder
@few
@given(BATCHES, st.integers(0, 99), st.integers(0, 9))
def test_padding_and_neighbours_in_the_batch_change_nothing(
    name: str, sizes: list[list[int]], seed: int, padding: int
) -> None:
    decoder = DECODERS_MADE[name]
    narrow = batch_of(sizes, seed)
    width = narrow["input_ids"].shape[1]
    wide = batch_of(sizes, seed, width + padding)
    together = logits(decoder, wide)
    for row, each in enumerate(sizes):
        length = sum(each) + 2
        alone = {
            field: value[row : row + 1, :length] if value.dim() > 1 else value[row : row + 1]
            for field, value in narrow.items()
        }
        alone["bottleneck"], alone["partner"] = (
            narrow["bottleneck"][row : row + 1],
            torch.zeros(1).long(),
        )
        torch.testing.assert_close(logits(decoder, alone)[0], together[row, :length])


@every_decoder
def test_the_partners_vector_is_used_but_by_the_condenser(name: str) -> None:
    decoder = DECODERS_MADE[name]
    batch = batch_of([[1, 2], [3, 1]], 1)
    own = logits(decoder, batch)
    swapped = logits(decoder, dict(batch, partner=torch.tensor([1, 0])))
    vectors = batch["bottleneck"][[1, 0]]
    exchanged = logits(decoder, dict(batch, bottleneck=vectors))
    if name == "condenser":  # states half-way up and vector are of one text
        assert torch.equal(swapped, own)
    else:
        assert torch.equal(swapped, exchanged)
    assert not torch.allclose(exchanged, own)


@every_decoder
@few
@given(BATCHES, st.integers(0, 99))
def test_labels_are_never_special_but_for_what_closes_a_text(
    name: str, sizes: list[list[int]], seed: int
) -> None:
    batch = batch_of(sizes, seed)
    random = np.random.default_rng(seed)
    typed = torch.from_numpy(random.random(batch["input_ids"].shape)) < 0.3
    inside = ~VOCABULARY.is_special(batch["input_ids"])
    batch["input_ids"] = torch.where(typed & inside, 1, batch["input_ids"])  # [UNK] in the text
    batch["labels"] = torch.where(typed, IGNORED, batch["labels"])
    batch["decoder_labels"] = batch["labels"]
    batch |= DECODERS_MADE[name].prepare(step_of(batch))
    labels = batch["decoder_labels"]
    told = labels[labels != IGNORED]
    if name != "autoregressive":
        assert not VOCABULARY.is_special(told).any()
        return
    closes = torch.zeros_like(labels, dtype=torch.bool)
    for row, each in enumerate(sizes):
        closes[row, sum(each)] = True
    assert torch.equal(closes, labels == 3)
    assert not VOCABULARY.is_special(labels[~closes & (labels != IGNORED)]).any()


@every_decoder
@few
@given(st.lists(word_sizes() | st.just([]), min_size=1, max_size=4), st.integers(0, 99))
def test_nothing_labels_more_than_it_says(name: str, sizes: list[list[int]], seed: int) -> None:
    batch = batch_of(sizes, seed)
    decoder = DECODERS_MADE[name]
    batch["regular"] = (~VOCABULARY.is_special(batch["input_ids"])).flatten().nonzero()[:, 0]
    batch["label_places"] = (batch["labels"] != IGNORED).flatten().nonzero()[:, 0]
    made = decoder.prepare(step_of(batch))
    most = decoder.most_labels(step_of(batch))
    if name == "bidirectional":  # it takes what the corruption labels
        assert not made
        assert most is None
    else:
        assert most is not None
        # No place is in vain.
        assert int((made["decoder_labels"] != IGNORED).sum()) == most
        del batch["regular"], batch["label_places"]
        assert decoder.most_labels(step_of(batch)) is None, "the device is asked"


@every_decoder
def test_texts_without_tokens_give_finite_results(name: str) -> None:
    batch = batch_of([[], [2], []], 1)
    batch |= DECODERS_MADE[name].prepare(step_of(batch))
    labelled = (batch["decoder_labels"] != IGNORED).sum(1).tolist()
    # A text without tokens has nothing to rebuild; told token by token, only that it ends.
    ends = int(name == "autoregressive")
    assert labelled[0] == labelled[2] == ends
    batch["bottleneck"] = batch["bottleneck"].clone().requires_grad_()
    found = DECODERS_MADE[name](step_of(batch)).prediction.logits()
    assert found.isfinite().all()
    (gradient,) = torch.autograd.grad(found.sum(), batch["bottleneck"])
    assert gradient.isfinite().all()
    assert gradient[0].any() == bool(ends)
