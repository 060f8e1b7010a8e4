"""Views crop once; batches are framed, padded and keyed; the task hands each part its fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isthmus.nn.sizes import new_backbone
from isthmus.pretrain.parts import Text, Vocabulary
from isthmus.pretrain.randomness import key
from isthmus.pretrain.recipe import PretrainSettings, assemble
from isthmus.pretrain.step import PretrainExamples, PretrainTask
from isthmus.pretrain.views.same import Same, SameSettings
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus, TokenisedDocument, tokenise
from isthmus.text.new_tokenizer import new_tokenizer

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
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    return tokenise(documents, "s", TOKENIZER.serialised, cache=tmp_path)


def test_head_keeps_the_beginning() -> None:
    text = same("head")(DOCUMENT, 12, key(0, 0, 0))
    assert text.tokens.tolist() == list(range(10, 22))
    assert text.words.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_random_crops_reach_every_window_and_depend_on_the_key_alone() -> None:
    starts = set()
    for epoch in range(400):
        drawn = key(1, epoch, 5)
        text = same("random")(DOCUMENT, 12, drawn)
        assert text.tokens.tolist() == list(range(text.tokens[0], text.tokens[0] + 12))
        assert text.words.tolist() == [(token - 10) // 2 for token in text.tokens]
        assert same("random")(DOCUMENT, 12, drawn).tokens[0] == text.tokens[0]
        starts.add(int(text.tokens[0]))
    assert starts == set(range(10, 29)), "19 windows, the last included"


@pytest.mark.parametrize("crop", ["head", "random"])
@pytest.mark.parametrize("room", [30, 31, 500])
def test_a_text_that_fits_is_never_cropped(crop: str, room: int) -> None:
    text = same(crop)(DOCUMENT, room, key(0, 3, 0))
    assert text.tokens.tolist() == DOCUMENT.tokens.tolist()


def test_batches_are_framed_and_padded(corpus: TokenisedCorpus) -> None:
    examples = PretrainExamples(corpus, same("head"), TOKENIZER, max_length=16, seed=7)
    assert len(examples) == 5
    assert examples.lengths.tolist() == [min(n, 14) for n in corpus.lengths]
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


def test_words_are_counted_from_the_first_one_shown() -> None:
    examples = PretrainExamples.__new__(PretrainExamples)
    examples.prefix, examples.suffix, examples.pad_id = [2], [3], 0
    late = Text(np.array([7, 8, 9], np.int32), np.array([41, 41, 43], np.int32))
    batch = examples.collate([(late, 1)])
    assert batch["words"].tolist() == [[-1, 0, 0, 2, -1]]


def task(**change: Any) -> PretrainTask:
    values = {
        "corpus": "c", "output": "o", "init": "tiny", "corruption": "uniform",
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
    forward = model.backbone.forward

    def spy(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen.append(ids)
        return forward(ids, mask)

    monkeypatch.setattr(model.backbone, "forward", spy)
    sums = model(batch)
    assert len(seen) == 1, "one encoder pass for all objectives"
    assert torch.equal(seen[0], batch["encoder_ids"])
    assert set(sums) == {"masked_lm", "bag_of_words", "bag_of_words/gap"}
    assert set(model.counts(batch)) == set(model.loss_names()) == {"masked_lm", "bag_of_words"}
    assert model.weights(0.3) == {"masked_lm": 1.0, "bag_of_words": 0.5}


def test_without_corruption_the_encoder_reads_the_text_itself(corpus: TokenisedCorpus) -> None:
    examples = PretrainExamples(corpus, same("head"), TOKENIZER, max_length=32, seed=0)
    model = task(corruption=None, objectives={"bag_of_words": 1.0})
    batch = examples.collate([examples[0, 0]])
    assert model.prepare(batch) is batch
    assert torch.isfinite(model(batch)["bag_of_words"])


def test_rows_beyond_the_tokens_are_special() -> None:
    vocabulary = Vocabulary(TOKENIZER, size=len(TOKENIZER) + 4)
    assert vocabulary.special[-4:].all()
    assert vocabulary.special[:5].all()
    assert vocabulary.special.sum() == 9
    assert vocabulary.regular.tolist() == list(range(5, len(TOKENIZER)))
    assert not list(vocabulary.state_dict()), "nothing of it belongs into a checkpoint"
