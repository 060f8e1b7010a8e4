"""Groups: a positive and its negatives, another share every epoch."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import tokenised

from isthmus.encoders.dense import DenseSettings
from isthmus.errors import SettingsError
from isthmus.finetuning.pairs import LabelledQueries, PairExamples, drawn_queries, one_matrix
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.nn.packing import steady_number
from isthmus.records import Document, Query
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer([f"fox{n} dog{n}" for n in range(30)], 200)
DOCUMENTS = [Document(f"d{n}", f"fox{n} dog{n}") for n in range(29)] + [
    Document("copy", "fox3 dog3")
]


@pytest.fixture
def corpus(tmp_path: Path) -> TokenisedCorpus:
    return tokenise(DOCUMENTS, "s", TOKENIZER.serialised, cache=tmp_path)


@pytest.fixture
def examples(corpus: TokenisedCorpus) -> PairExamples:
    labelled = LabelledQueries(
        [Query("1", "fox3"), Query("2", "dog7 fox7 dog8 fox8")], [[3, 9], [7]]
    )
    negatives = np.array([[10, 11, 12, 13], [20, 21, 22, 23]], dtype=np.int32)
    settings = DenseSettings(query_max_length=5, document_max_length=6)
    return PairExamples(labelled, negatives, 3, corpus, TOKENIZER, settings, alike=True)


def test_positives_and_negatives_rotate_by_epoch(examples: PairExamples) -> None:
    groups = [[examples[epoch, number][1] for number in (0, 1)] for epoch in range(4)]
    assert groups == [
        [[3, 10, 11], [7, 20, 21]],
        [[9, 12, 13], [7, 22, 23]],
        [[3, 10, 11], [7, 20, 21]],
        [[9, 12, 13], [7, 22, 23]],
    ]


def test_fewer_queries_are_drawn_by_the_seed() -> None:
    everything = LabelledQueries(
        [Query(str(n), f"fox{n}") for n in range(200)], [[n] for n in range(200)]
    )

    def drawn(wanted: float | None, seed: int = 1) -> list[int]:
        found = drawn_queries(everything, wanted, seed)
        numbers = [int(query.id) for query in found.queries]
        assert found.positives == [[number] for number in numbers]
        assert numbers == sorted(set(numbers))
        return numbers

    assert drawn(None) == drawn(200) == drawn(1000) == list(range(200))
    assert len(drawn(50)) == 50
    assert drawn(0.25) == drawn(50) == drawn(50)
    assert set(drawn(50)) < set(drawn(100)), "a larger share has the smaller one in it"
    assert drawn(50, seed=2) != drawn(50) != list(range(50))
    assert len(drawn(1)) == len(drawn(0.001)) == 1


@pytest.mark.parametrize("wanted", [0, -3, 2.5, "many"])
def test_numbers_of_queries_that_are_none(wanted: object) -> None:
    flags = {"model": "m", "collection": "c", "output": "o"}
    with pytest.raises(SettingsError) as caught:
        FinetuneSettings.parse({**flags, "queries": wanted}, "test")
    assert f"queries = {wanted!r}" in caught.value.what
    for good in (1, 50_000, 0.1, None):
        assert FinetuneSettings.parse({**flags, "queries": good}, "test").queries == good


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


@pytest.mark.parametrize("alike", [True, False])
def test_steady_batches_have_one_width_and_few_numbers_of_tokens(
    examples: PairExamples, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.nn.packing.GRANULES", 4)
    examples.alike, examples.settings = alike, DenseSettings(query_max_length=9)
    groups = [examples[0, 0], examples[0, 1]]
    for steady in (False, True):
        examples.steady = steady
        batch = examples.collate(groups)
        widths = [batch[f"{side}_ids"].shape[1] for side in ("query", "passage")]
        masks = [batch[f"{side}_mask"] for side in ("query", "passage")]
        read = one_matrix(masks, 0) if alike else masks[1]
        places, flat = batch["tokens"], read.flatten()
        tokens = int(flat.sum())
        assert torch.equal(places[:tokens], flat.nonzero()[:, 0])
        assert not flat[places[tokens:]].any(), "then places of padding"
        if steady:
            assert widths == [9, 64], "as wide as a query may be; a multiple of 64"
            assert len(places) == steady_number(tokens, flat.numel()) > tokens
        else:
            assert len(places) == tokens
        for side in ("query", "passage"):
            rest = batch[f"{side}_ids"][batch[f"{side}_mask"] == 0]
            assert (rest == TOKENIZER.pad_id).all()


def test_a_drawn_query_is_left_out_of_its_positive_alone(tmp_path: Path) -> None:
    documents = [f"fox{n} dog{n} fox1 dog1 fox2 dog2" for n in range(3)]
    corpus = tokenised(documents, TOKENIZER, tmp_path)
    labelled = LabelledQueries([Query("1", "fox1 dog1")], [[0]], ["fox1 dog1"])
    settings = DenseSettings(document_max_length=64)
    negatives = np.array([[1]], dtype=np.int32)
    examples = PairExamples(labelled, negatives, 2, corpus, TOKENIZER, settings, alike=True)
    batch = examples.collate([examples[0, 0]])
    texts = [
        TOKENIZER.backend.decode(row[mask.bool()].tolist())
        for row, mask in zip(batch["passage_ids"], batch["passage_mask"], strict=True)
    ]
    wanted = ["fox0 dog0 fox2 dog2", documents[1]]
    bare = [text.replace(" ", "").replace("##", "") for text in texts]
    assert bare == [text.replace(" ", "") for text in wanted]
    shorter = PairExamples(
        labelled, negatives, 2, corpus, TOKENIZER, settings, alike=True, max_length=4
    )
    assert shorter.collate([shorter[0, 0]])["passage_ids"].shape[1] == 4
    assert labelled.some(np.array([0])).cuts == ["fox1 dog1"]


def test_without_negatives_the_group_is_the_positive(corpus: TokenisedCorpus) -> None:
    labelled = LabelledQueries([Query("1", "fox3"), Query("2", "fox4")], [[3], [29]])
    examples = PairExamples(labelled, None, 1, corpus, TOKENIZER, DenseSettings(), alike=True)
    batch = examples.collate([examples[0, 0], examples[0, 1]])
    assert len(batch["passage_ids"]) == 2
    assert batch["keys"][0] == batch["keys"][1], "copies of a text share a key"
    assert len(set(itertools.chain.from_iterable(corpus.keys[None]))) == 29
