"""Views crop once; batches are framed, padded and keyed; the task hands each part its fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.factories import tokenised

from isthmus.nn.backbone import new_backbone
from isthmus.nn.randomness import key, second
from isthmus.pretraining.examples import Example, PretrainExamples
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.step import IGNORED, Vocabulary, at_places, places_of
from isthmus.pretraining.task import PretrainTask
from isthmus.pretraining.views import Neighbours, NeighboursSettings, Same, SameSettings, Text
from isthmus.text.corpus import TokenisedCorpus, TokenisedDocument
from isthmus.text.tokenizer import new_tokenizer

WORDS = "the quick brown fox jumps over the lazy dog"
TOKENIZER = new_tokenizer([WORDS] * 2, 70)
DOCUMENT = TokenisedDocument(
    id="1",
    tokens=np.arange(10, 40, dtype=np.int32),
    words=np.arange(30, dtype=np.int32) // 2,
    sentences=np.array([0], np.int32),
)


def same(crop: str) -> Same:
    return Same(SameSettings.parse({"crop": crop}, "test"))


@pytest.fixture
def corpus(tmp_path: Path) -> TokenisedCorpus:
    texts = [WORDS, "fox", f"{WORDS} " * 9, "", "the lazy quickly brown"]
    return tokenised(texts, TOKENIZER, tmp_path)


def test_head_keeps_the_beginning() -> None:
    (text,) = same("head")(DOCUMENT, 12, key(0, 0, 0))
    assert text.tokens.tolist() == list(range(10, 22))
    assert text.words.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_random_crops_reach_every_window_and_depend_on_the_key_alone() -> None:
    starts = set()
    for epoch in range(400):
        drawn = key(1, epoch, 5)
        (text,) = same("random")(DOCUMENT, 12, drawn)
        assert text.tokens.tolist() == list(range(text.tokens[0], text.tokens[0] + 12))
        assert text.words.tolist() == [(token - 10) // 2 for token in text.tokens]
        assert same("random")(DOCUMENT, 12, drawn)[0].tokens[0] == text.tokens[0]
        assert text.start == text.tokens[0] - 10, "where columns beside the corpus are cut"
        starts.add(int(text.tokens[0]))
    assert starts == set(range(10, 29)), "19 windows, the last included"


@pytest.mark.parametrize("crop", ["head", "random"])
@pytest.mark.parametrize("room", [30, 31, 500])
def test_a_text_that_fits_is_never_cropped(crop: str, room: int) -> None:
    (text,) = same(crop)(DOCUMENT, room, key(0, 3, 0))
    assert text.tokens.tolist() == DOCUMENT.tokens.tolist()


def test_batches_are_framed_and_padded(corpus: TokenisedCorpus) -> None:
    examples = PretrainExamples(corpus, same("head"), TOKENIZER, max_length=16, seed=7)
    assert len(examples) == 5
    framed = [min(n, 14) + 2 for n in corpus.lengths]
    assert examples.lengths.tolist() == framed
    rows = [0, 1, 2, 3]
    batch = examples.collate([examples[2, row] for row in rows])
    assert batch["keys"].tolist() == [key(7, 2, row) for row in rows]
    for row in rows:
        tokens = corpus[row].tokens[:14].tolist()
        framed = [2, *tokens, 3]
        padding = 16 - len(framed)
        assert batch["input_ids"][row].tolist() == framed + [0] * padding
        assert batch["attention_mask"][row].tolist() == [1] * len(framed) + [0] * padding
        words = corpus[row].words[:14].tolist()
        assert batch["words"][row].tolist() == [-1, *words, -1] + [-1] * padding


def test_words_are_counted_without_gaps_from_the_first_one_shown() -> None:
    view = same("head")
    examples = PretrainExamples(cast(Any, None), view, TOKENIZER, 16, 0, rows=np.arange(0))
    late = Text(np.array([7, 8, 9, 4, 9], np.int32), np.array([41, 41, 43, -1, 50], np.int32))
    empty = Text(np.array([], np.int32), np.array([], np.int32))
    alike = Text(np.array([5, 6], np.int32), np.array([50, 51], np.int32))  # 50: another text's
    batch = examples.collate([Example((text,), ({},), 1) for text in (late, empty, alike, empty)])
    assert batch["words"].tolist() == [
        [-1, 0, 0, 1, -1, 2, -1],
        [-1] * 7,
        [-1, 0, 1, -1, -1, -1, -1],
        [-1] * 7,
    ]
    assert batch["input_ids"].tolist() == [
        [2, 7, 8, 9, 4, 9, 3],
        [2, 3, 0, 0, 0, 0, 0],
        [2, 5, 6, 3, 0, 0, 0],
        [2, 3, 0, 0, 0, 0, 0],
    ]
    assert batch["attention_mask"].sum(1).tolist() == [7, 2, 4, 2]


class Places:
    """A column that tells document and place of every token."""

    def __init__(self, corpus: TokenisedCorpus) -> None:
        self.lengths = corpus.lengths

    def __getitem__(self, row: int, /) -> Any:
        places = np.arange(self.lengths[row], dtype=np.float32)
        return np.stack([places, np.full_like(places, row)], 1)


@pytest.mark.parametrize("pairs", [False, True])
def test_columns_are_cut_like_the_text(pairs: bool, corpus: TokenisedCorpus) -> None:
    view = Neighbours(NeighboursSettings(span=12)) if pairs else same("random")
    columns = {"places": Places(corpus)}
    examples = PretrainExamples(corpus, view, TOKENIZER, 16, 3, columns)
    order = [2, 0, 3, 4]
    shown = [examples[1, row] for row in order]
    batch = examples.collate(shown)
    texts = [text for side in range(view.rows) for text in (each.texts[side] for each in shown)]
    assert any(text.start > 0 for text in texts)
    for row, text in enumerate(texts):
        count = len(text.tokens)
        found = batch["places"][row]
        assert found[[0, *range(count + 1, len(found))]].isnan().all(), "special ones and padding"
        document = order[row % len(order)]
        tokens = corpus[document].tokens
        for place, token in enumerate(text.tokens.tolist(), start=1):
            where, source = found[place].tolist()
            assert source == document
            assert tokens[int(where)] == token == batch["input_ids"][row, place]
            assert where == text.start + place - 1


def test_a_batch_of_pairs(corpus: TokenisedCorpus) -> None:
    view = Neighbours(NeighboursSettings(span=12))
    examples = PretrainExamples(corpus, view, TOKENIZER, max_length=32, seed=7)
    rows = [2, 1, 3]
    shown = [examples[4, row] for row in rows]
    batch = examples.collate(shown)
    assert batch["partner"].tolist() == [3, 4, 5, 0, 1, 2]
    first = [key(7, 4, row) for row in rows]
    assert batch["keys"].tolist() == first + [second(drawn) for drawn in first]
    assert batch["repeated"].tolist() == [False, True, True] * 2, "documents of one span"
    assert (batch["attention_mask"].sum(1) <= 12).all()
    for side in range(2):
        for document, example in enumerate(shown):
            row = side * 3 + document
            count = len(example.texts[side].tokens)
            expected = [2, *example.texts[side].tokens.tolist(), 3]
            assert batch["input_ids"][row, : count + 2].tolist() == expected


def test_rows_chooses_documents_and_keeps_their_keys(corpus: TokenisedCorpus) -> None:
    every = PretrainExamples(corpus, same("head"), TOKENIZER, 16, 7)
    some = PretrainExamples(corpus, same("head"), TOKENIZER, 16, 7, rows=np.array([4, 1]))
    assert len(some) == 2
    assert some.lengths.tolist() == every.lengths[[4, 1]].tolist()
    assert some[3, 0].key == every[3, 4].key == key(7, 3, 4)
    assert some[3, 1].texts[0].tokens.tolist() == every[3, 1].texts[0].tokens.tolist()


def task(**change: Any) -> PretrainTask:
    values = {
        "documents": "c", "output": "o", "model": "scratch:tiny", "corruption": "uniform",
        "objectives": {"masked_lm": 1.0, "bag_of_words": {"weight": 0.5}}, **change,
    }  # fmt: skip
    parts = assemble(PretrainSettings.parse(values, where="test"))
    return PretrainTask(new_backbone("tiny", len(TOKENIZER), 0), TOKENIZER, parts)


def test_the_encoder_reads_the_corrupted_text(
    corpus: TokenisedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = PretrainExamples(corpus, same("head"), TOKENIZER, max_length=32, seed=0)
    model = task()
    batch = model.prepare(examples.collate([examples[0, 0], examples[0, 4]]))
    assert not torch.equal(batch["encoder_ids"], batch["input_ids"])
    seen: list[torch.Tensor] = []
    encode = model.backbone.encode

    def spy(ids: torch.Tensor, *others: Any, **named: Any) -> Any:
        seen.append(ids)
        return encode(ids, *others, **named)

    monkeypatch.setattr(model.backbone, "encode", spy)
    sums = model(batch)
    assert len(seen) == 1, "one encoder pass for all objectives"
    assert torch.equal(seen[0], batch["encoder_ids"])
    assert set(sums) == {"masked_lm", "bag_of_words", "bag_of_words/gap"}
    assert set(model.counts(batch)) == set(model.weights(0.3)) == {"masked_lm", "bag_of_words"}
    assert model.weights(0.3) == {"masked_lm": 1.0, "bag_of_words": 0.5}


def test_the_places_of_tokens_are_those_of_the_mask(corpus: TokenisedCorpus) -> None:
    examples = PretrainExamples(corpus, same("head"), TOKENIZER, max_length=32, seed=0)
    examples.pad_id = 7  # RoBERTa's is not 0 either
    batch = examples.collate([examples[0, row] for row in range(3)])
    assert not batch["attention_mask"].all()
    assert torch.equal(batch["tokens"], batch["attention_mask"].flatten().nonzero()[:, 0])


def test_the_places_of_regular_tokens_are_those_of_the_vocabulary(tmp_path: Path) -> None:
    corpus = tokenised([f"{WORDS} [MASK] ж {WORDS}", "", "ж"], TOKENIZER, tmp_path)
    examples = PretrainExamples(corpus, same("head"), TOKENIZER, max_length=16, seed=0)
    batch = examples.collate([examples[0, row] for row in range(3)])
    vocabulary = Vocabulary(TOKENIZER, size=len(TOKENIZER) + 4)
    special = vocabulary.is_special(batch["input_ids"])
    assert special[0, 1:-1].any()
    assert torch.equal(batch["regular"], (~special).flatten().nonzero()[:, 0])


def test_without_corruption_the_encoder_reads_the_text_itself(corpus: TokenisedCorpus) -> None:
    examples = PretrainExamples(corpus, same("head"), TOKENIZER, max_length=32, seed=0)
    model = task(corruption=None, objectives={"bag_of_words": 1.0})
    batch = examples.collate([examples[0, 0]])
    assert set(model.prepare(batch)) == set(batch)
    assert torch.isfinite(model(batch)["bag_of_words"])


@pytest.mark.parametrize("asked", [True, False])
def test_what_is_labelled_is_what_an_index_of_truths_gives(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not asked:
        monkeypatch.setattr("isthmus.pretraining.step.SYNCHRONOUS", frozenset())
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(3, 5, 2, generator=generator, requires_grad=True)
    ids = torch.randint(50, (3, 5), generator=generator)
    chosen = torch.rand(3, 5, generator=generator) < 0.5
    chosen[1] = False
    for mask in (chosen, torch.zeros_like(chosen), torch.ones_like(chosen)):
        count = int(mask.sum())
        for most in (None, count, count + 3):
            places = places_of(mask, most)
            assert len(places) == (count if asked or most is None else most)
            tokens, found = at_places(places, ids, states)
            assert torch.equal(found[:count], states[mask])
            assert torch.equal(tokens[:count], ids[mask])
            assert (tokens[count:] == IGNORED).all()
            (gradient,) = torch.autograd.grad(found[:count].sum(), states)
            assert torch.equal(gradient, mask[:, :, None].expand(3, 5, 2).float())


@pytest.mark.parametrize(
    ("knowing", "error"), [({"cpu"}, AssertionError), (frozenset(), RuntimeError)]
)
def test_labels_beyond_the_number_stated_are_never_lost_in_silence(
    knowing: Any, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.pretraining.step.SYNCHRONOUS", knowing)
    chosen = torch.tensor([[True, False, True]])
    assert places_of(chosen, 2).tolist() == [0, 2]
    with pytest.raises(error, match="labels"):
        places_of(chosen, 1)
