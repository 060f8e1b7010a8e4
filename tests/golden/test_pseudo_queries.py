"""Sources of pseudo-queries: what each draws from a document, and what it leaves out of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from transformers import BertTokenizerFast, T5Config, T5ForConditionalGeneration

from isthmus.collections import Corpus, Problems
from isthmus.errors import InputError, SettingsError
from isthmus.finetuning.pairs import without
from isthmus.finetuning.pseudo_queries import (
    PseudoCollection,
    PseudoQuery,
    drawn,
    held_out_documents,
    sources,
)
from isthmus.finetuning.settings import PseudoQuerySettings
from isthmus.records import Document

TEXT = "Cells divide by mitosis. Yeast buds quickly in warm broth. See chapter two."
DOCUMENT = Document("a", TEXT, "How cells divide")


def draw(name: str, document: Document = DOCUMENT, count: int = 9, **settings: Any) -> list[Any]:
    (source,) = sources({name: settings}).values()
    return source.draw(document, count, np.random.default_rng(0))


def test_sentence() -> None:
    found = draw("sentence", left_in=0.0)
    assert {query.text for query in found} == {
        "Cells divide by mitosis.", "Yeast buds quickly in warm broth.",
    }  # fmt: skip
    assert all(query.cut == query.text for query in found)
    assert not any(query.cut for query in draw("sentence", left_in=1.0))
    assert draw("sentence", Document("a", "One sentence only, however long it is.")) == []


def test_title() -> None:
    assert draw("title") == [PseudoQuery("How cells divide", "How cells divide")]
    assert draw("title", Document("a", "", "A title alone")) == []


def test_crop() -> None:
    words = TEXT.split()
    for query in draw("crop", count=50, min_words=2, max_words=5):
        crop = query.text.split()
        assert 2 <= len(crop) <= 5
        assert any(words[start : start + len(crop)] == crop for start in range(len(words)))
        assert not query.cut
    assert all(query.cut == query.text for query in draw("crop", left_in=0.0))
    assert draw("crop", Document("a", "two words")) == []


def test_generator(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cells", "divide", "yeast", "buds"]
    vocabulary.write_text("\n".join(words), encoding="utf-8")
    BertTokenizerFast(str(vocabulary)).save_pretrained(tmp_path)
    torch.manual_seed(0)
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    config = T5Config(vocab_size=len(words), decoder_start_token_id=0, eos_token_id=3, **sizes)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    settings = {"model": str(tmp_path), "max_new_tokens": 3}
    (source,) = sources({"generator": settings}).values()
    randoms = [np.random.default_rng(7) for _ in range(2)]
    found = source.draw_all([DOCUMENT, Document("b", "yeast buds")], 4, randoms)
    randoms = [np.random.default_rng(7) for _ in range(2)]
    assert found == source.draw_all([DOCUMENT, Document("b", "yeast buds")], 4, randoms)
    assert any(found)
    assert all(len(query.text.split()) <= 3 and not query.cut for one in found for query in one)


def test_shares_and_seeds() -> None:
    documents = [Document(str(n), TEXT.replace("Yeast", f"Yeast{n}"), "Title") for n in range(300)]
    chosen = sources({"title": {"share": 3.0}, "sentence": {}})
    found = dict(drawn(documents, chosen, 1, seed=5))
    titles = sum(query.text == "Title" for (query,) in found.values())
    assert titles / len(found) == pytest.approx(0.75, abs=0.08)
    assert found == dict(drawn(reversed(documents), chosen, 1, seed=5))
    assert found != dict(drawn(documents, chosen, 1, seed=6))
    assert all(len(queries) == 3 for _, queries in drawn(documents, chosen, 9, seed=5))


@pytest.mark.parametrize("values", [{"titel": {}}, {"title": 3}, {"title": None}, {}])
def test_wrong_sources(values: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        sources(values)


def test_without() -> None:
    tokens = np.arange(20, dtype=np.int32)
    assert without(tokens, [3, 4, 5]).tolist() == [0, 1, 2, *range(6, 20)]
    # Of a long cut, the ends may be spelt otherwise.
    assert without(tokens, [99, 4, 5, 6, 7, 8, 98]).tolist() == [0, 1, 2, *range(10, 20)]
    for cut in ([], [4, 3], list(range(30)), list(range(19))):
        assert without(tokens, cut).tolist() == tokens.tolist()


class Few(Corpus):
    """Documents in memory."""

    def __init__(self, documents: list[Document]) -> None:
        self.listed = documents

    @classmethod
    def open(cls, location: str, problems: Problems) -> Self:
        raise NotImplementedError

    def documents(self) -> Iterator[Document]:
        return iter(self.listed)

    def fingerprint(self) -> str:
        return "few"


def collection(documents: int, wanted: int, file: Path | None = None) -> PseudoCollection:
    corpus = Few(
        [Document(str(n), f"{TEXT} Number {n}\u2028is odd.", "T") for n in range(documents)]
    )
    settings = PseudoQuerySettings(sources={"sentence": {}, "title": {}}, held_out=10)
    return PseudoCollection(corpus, corpus, settings, wanted, 1, file)


def test_collection(tmp_path: Path) -> None:
    file = tmp_path / "queries.jsonl"
    found = collection(200, 600, file)
    train, dev = (found.judgements(split) for split in found.splits())
    assert len(dev) == 10
    assert {one for judged in dev.values() for one in judged} == held_out_documents(
        [str(n) for n in range(200)], 10
    )
    assert len(train) == 3 * 190
    assert not {one for judged in train.values() for one in judged} & held_out_documents(
        [str(n) for n in range(200)], 10
    )
    texts = {query.id: query.text for query in found.queries()}
    assert all(cut == texts[query] for query, cut in found.cuts().items())
    again = collection(200, 600, file)
    again.again = Few([])  # read, not drawn
    assert again.judgements("train") == train
    assert again.cuts() == found.cuts()
    file.write_text(file.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    assert collection(200, 600, file).judgements("train") == train, "damaged: drawn again"


def test_large_corpora_are_sampled() -> None:
    train = collection(2000, 500).judgements("train")
    assert 400 < len(train) < 600


def test_too_few() -> None:
    with pytest.raises(InputError, match="queries can be drawn from"):
        collection(10, 20).judgements("train")
