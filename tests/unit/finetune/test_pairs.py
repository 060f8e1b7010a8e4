"""Negatives and groups: never a positive, never twice, another share every epoch."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from isthmus.encoders.dense import DenseSettings
from isthmus.errors import SettingsError
from isthmus.finetune.mining import MiningSettings, draw_negatives
from isthmus.finetune.pairs import LabelledQueries, PairExamples
from isthmus.finetune.settings import FinetuneSettings
from isthmus.finetune.stage import _source_of_negatives
from isthmus.records import Document, Query, Ranking
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.new_tokenizer import new_tokenizer

TOKENIZER = new_tokenizer([f"fox{n} dog{n}" for n in range(30)], 200)
DOCUMENTS = [Document(f"d{n}", f"fox{n} dog{n}") for n in range(29)] + [
    Document("copy", "fox3 dog3")
]


@pytest.fixture
def corpus(tmp_path: Path) -> TokenisedCorpus:
    return tokenise(DOCUMENTS, "s", TOKENIZER.serialised, cache=tmp_path)


def ranking(*numbers: int) -> Ranking:
    ids = tuple(f"d{number}" if number != 29 else "copy" for number in numbers)
    return Ranking("q", ids, tuple(float(-n) for n in range(len(ids))))


def test_negatives_come_from_their_ranks_and_are_never_positives(corpus: TokenisedCorpus) -> None:
    settings = MiningSettings(num_negatives=4, range_min=2, range_max=20)
    ranked = ranking(0, 1, 3, 29, *range(4, 28))
    drawn = draw_negatives([ranked] * 50, [[3, 5]] * 50, corpus, settings, epochs=3, seed=0)
    assert drawn.shape == (50, 12)
    inside = set(range(4, 20)) - {5}  # ranks 2 to 19, without positives and the copy of one
    for row in drawn.tolist():
        assert len(set(row)) == 12, "without replacement over all epochs"
        assert set(row) <= inside
    assert set(drawn.flat) == inside, "every rank is drawn for some query"
    again = draw_negatives([ranked] * 50, [[3, 5]] * 50, corpus, settings, epochs=3, seed=0)
    other = draw_negatives([ranked] * 50, [[3, 5]] * 50, corpus, settings, epochs=3, seed=1)
    assert (drawn == again).all()
    assert (drawn != other).any()


def test_too_few_candidates_are_filled_with_other_documents(corpus: TokenisedCorpus) -> None:
    settings = MiningSettings(num_negatives=5)
    drawn = draw_negatives(
        [ranking(3, 29, 7), Ranking("empty")], [[3], [0]], corpus, settings, epochs=2, seed=0
    )
    assert drawn[0, 0] == 7
    assert not {3, 29} & set(drawn[0].tolist()), "neither the positive nor its copy"
    assert 0 not in drawn[1]


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(SettingsError, match="range_min must be below range_max"):
        MiningSettings.parse({"range_min": 5, "range_max": 5}, "test")


def test_a_source_of_negatives_nobody_has() -> None:
    base = {"model": "m", "collection": "c", "output": "o"}
    for negatives, what in [
        ("bm52", "there is no source of negatives named 'bm52'"),
        ({"name": "bm25", "num_negative": 3}, "unknown key 'negatives.num_negative'"),
    ]:
        settings = FinetuneSettings.parse({**base, "negatives": negatives}, "test")
        with pytest.raises(SettingsError) as caught:
            _source_of_negatives(settings)
        assert caught.value.what == what
        assert caught.value.allowed.split(",")[0] in ("bm25", "num_negatives")


@pytest.fixture
def examples(corpus: TokenisedCorpus) -> PairExamples:
    labelled = LabelledQueries(
        [Query("1", "fox3"), Query("2", "dog7 fox7 dog8 fox8")], [[3, 9], [7]]
    )
    negatives = np.array([[10, 11, 12, 13], [20, 21, 22, 23]], dtype=np.int32)
    settings = DenseSettings(query_max_length=5, document_max_length=6)
    return PairExamples(labelled, negatives, 3, corpus, TOKENIZER, settings)


def test_positives_and_negatives_rotate_by_epoch(examples: PairExamples) -> None:
    groups = [[examples[epoch, number][1] for number in (0, 1)] for epoch in range(4)]
    assert groups == [
        [[3, 10, 11], [7, 20, 21]],
        [[9, 12, 13], [7, 22, 23]],
        [[3, 10, 11], [7, 20, 21]],
        [[9, 12, 13], [7, 22, 23]],
    ]


def test_a_batch_is_queries_and_flattened_groups(
    examples: PairExamples, corpus: TokenisedCorpus
) -> None:
    batch = examples.collate([examples[0, 0], examples[0, 1]])
    rows = [3, 10, 11, 7, 20, 21]
    assert batch["passage_ids"].shape[0] == len(rows)
    for found, mask, row in zip(batch["passage_ids"], batch["passage_mask"], rows, strict=True):
        expected = [2, *corpus[row].tokens[:4].tolist(), 3]
        assert found[mask.bool()].tolist() == expected
    for found, mask, text in zip(
        batch["query_ids"], batch["query_mask"], ["fox3", "dog7 fox7 dog8 fox8"], strict=True
    ):
        assert found[mask.bool()].tolist() == TOKENIZER.encode([text], 5)[0]
    assert batch["keys"].tolist() == corpus.keys[rows].tolist()


def test_without_negatives_the_group_is_the_positive(corpus: TokenisedCorpus) -> None:
    labelled = LabelledQueries([Query("1", "fox3"), Query("2", "fox4")], [[3], [29]])
    examples = PairExamples(labelled, None, 1, corpus, TOKENIZER, DenseSettings())
    batch = examples.collate([examples[0, 0], examples[0, 1]])
    assert len(batch["passage_ids"]) == 2
    assert batch["keys"][0] == batch["keys"][1], "copies of a text share a key"
    assert len(set(itertools.chain.from_iterable(corpus.keys[None]))) == 29
