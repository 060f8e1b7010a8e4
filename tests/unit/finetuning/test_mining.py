"""Negatives: no positives, no text twice in a group, below the margin, others every epoch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.errors import SettingsError
from isthmus.finetuning.candidates import (
    NOTHING,
    MiningSettings,
    Ranker,
    Rows,
    TrainingCorpus,
)
from isthmus.finetuning.mining import epochs_of, mine
from isthmus.finetuning.negatives import Source, negative_sources
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.teachers import Teacher
from isthmus.records import Document, Query, Ranking
from isthmus.text.corpus import tokenise
from isthmus.text.tokenizer import new_tokenizer
from isthmus.training.settings import TrainingSettings

TOKENIZER = new_tokenizer([f"fox{n} dog{n}" for n in range(60)], 300)
DOCUMENTS = [Document(f"d{n}", f"fox{n} dog{n}") for n in range(59)] + [
    Document("copy", "fox3 dog3")
]
COPY = 59  # of document 3


class Ranked(Source):
    """Answers every query with the same rows, each scoring less than the one before."""

    def __init__(self, rows: Sequence[int], scores: Sequence[float] = (), **settings: Any) -> None:
        super().__init__(MiningSettings.parse(settings, "test"))
        ids = tuple(DOCUMENTS[row].id for row in rows)
        self.ranking = Ranking("q", ids, tuple(scores or (100.0 - n for n in range(len(ids)))))

    def open(self, corpus: TrainingCorpus) -> Ranker:
        return Ranker(str(self.ranking), lambda queries, depth: [self.ranking] * len(queries))


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingCorpus:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    tokenised = tokenise(DOCUMENTS, "s", TOKENIZER.serialised, cache=tmp_path)
    nobody: Any = None  # these sources do not read the collection
    return TrainingCorpus("test", nobody, "s", tokenised)


def labelled(*positives: list[int]) -> LabelledQueries:
    queries = [Query(str(n), f"fox{rows[0]}") for n, rows in enumerate(positives)]
    return LabelledQueries(queries, list(positives))


@pytest.mark.parametrize(
    ("values", "queries", "epochs"),
    [
        ({"num_train_epochs": 2.5}, 100, 3),
        # 100 queries are 12 whole steps of 8
        ({"num_train_epochs": 9, "max_steps": 12}, 100, 1),
        ({"num_train_epochs": 1, "max_steps": 13}, 100, 2),
        ({"max_steps": 13, "gradient_accumulation_steps": 2}, 100, 3),
        ({"max_steps": 5}, 3, 5),
        # 30 candidates, 4 at a time, have all been drawn after 8
        ({"max_steps": 100_000}, 100, 8),
        ({"num_train_epochs": 20}, 100, 20),
    ],
)
def test_as_many_epochs_as_training_begins(
    values: dict[str, Any], queries: int, epochs: int
) -> None:
    training = TrainingSettings.parse({"per_device_train_batch_size": 8, **values}, "test")
    sources = [Ranked([], num_negatives=4, range_max=30), Ranked([], range_max=20)]
    assert epochs_of(training, queries, sources) == epochs
    halved = training.model_copy(update={"per_device_train_batch_size": 4})
    assert epochs_of(halved, queries, sources, processes=2) == epochs


def test_negatives_come_from_their_ranks_and_are_never_positives(corpus: TrainingCorpus) -> None:
    source = Ranked([0, 1, 3, COPY, *range(4, 28)], num_negatives=4, range_min=2, range_max=20)
    queries = labelled(*[[3, 5]] * 50)
    drawn = mine([source], corpus, queries, epochs=3, seed=0)
    assert drawn.rows.shape == (50, 12)
    inside = set(range(4, 20)) - {5}  # ranks 2 to 19, without positives and the copy of one
    for row in drawn.rows.tolist():
        assert len(set(row)) == 12, "without replacement over all epochs"
        assert set(row) <= inside
    assert set(drawn.rows.flat) == inside, "every rank is drawn for some query"
    assert not drawn.random.any()
    again = mine([source], corpus, queries, epochs=3, seed=0)
    other = mine([source], corpus, queries, epochs=3, seed=1)
    longer = mine([source], corpus, queries, epochs=5, seed=0)
    assert (drawn.rows == again.rows).all()
    assert (drawn.rows != other.rows).any()
    assert (drawn.rows == longer.rows[:, :12]).all()


def test_other_passages_of_a_relevant_document_take_no_candidates_place(
    corpus: TrainingCorpus,
) -> None:
    source = Ranked(range(10, 20), num_negatives=2)
    queries = replace(labelled(*[[3]] * 20), others=[list(range(10, 16))] * 20)
    drawn = mine([source], corpus, queries, epochs=1, seed=0)
    assert set(drawn.rows.flat) == {16, 17, 18, 19}
    assert not drawn.random.any()


def test_candidates_come_again_only_when_all_had_their_turn(corpus: TrainingCorpus) -> None:
    source = Ranked(range(10, 17), num_negatives=3)
    rows = mine([source], corpus, labelled([0]), epochs=7, seed=0).rows[0].tolist()
    for start in range(0, 21, 7):
        assert set(rows[start : start + 7]) == set(range(10, 17))


@pytest.mark.parametrize("order", [1, -1])
def test_what_one_source_drew_comes_last_in_another(corpus: TrainingCorpus, order: int) -> None:
    sources = [Ranked(range(10, 40), num_negatives=2), Ranked(range(8, 24), num_negatives=1)]
    drawn = mine(sources[::order], corpus, labelled(*[[0]] * 50), epochs=5, seed=0)
    for rows in drawn.rows.tolist():
        assert len(set(rows)) == 15, "no document comes twice, whichever source has it"
    # Four candidates, of which the other source has all: each has one turn in both queues.
    sources = [Ranked(range(10, 14), num_negatives=1), Ranked(range(10, 14), num_negatives=1)]
    drawn = mine(sources[::order], corpus, labelled(*[[0]] * 50), epochs=4, seed=0)
    for rows in drawn.rows.tolist():
        assert sorted(rows[::2]) == sorted(rows[1::2]) == [10, 11, 12, 13]
        assert sorted(rows[:4]) == [10, 11, 12, 13]
    assert not drawn.random.any()


def test_too_few_candidates_are_filled_with_other_documents(corpus: TrainingCorpus) -> None:
    source = Ranked([3, COPY, 7], num_negatives=5)
    drawn = mine([source], corpus, labelled([3]), epochs=2, seed=0)
    for group, random in zip(drawn.rows.reshape(2, 5), drawn.random.reshape(2, 5), strict=True):
        assert group[0] == 7
        assert random.tolist() == [False, True, True, True, True]
        assert not {3, COPY} & set(group.tolist()), "neither the positive nor its copy"
        assert len(set(group.tolist())) == 5
    assert (drawn.rows[0, :5] != drawn.rows[0, 5:]).any(), "other random documents every epoch"


@pytest.mark.parametrize(
    ("margins", "positive", "kept"),
    [
        ({"absolute_margin": 0.0}, 4.0, [4.0, 3.875, 3.0, 0.0, -2.0]),
        ({"absolute_margin": 0.5}, 4.0, [3.0, 0.0, -2.0]),
        ({"relative_margin": 0.03125}, 4.0, [3.875, 3.0, 0.0, -2.0]),
        ({"relative_margin": 0.1}, 4.0, [3.0, 0.0, -2.0]),
        ({"relative_margin": 0.01, "absolute_margin": 2.0}, 4.0, [0.0, -2.0]),
        ({"relative_margin": 0.5, "absolute_margin": 0.1}, 4.0, [0.0, -2.0]),
        ({"relative_margin": 0.25, "absolute_margin": 1.0}, 4.0, [3.0, 0.0, -2.0]),
        # Below zero a share of the positive is still a distance downwards.
        ({"relative_margin": 0.5}, -1.0, [-2.0]),
        ({"relative_margin": 1.5}, -1.0, []),
        ({"relative_margin": 0.5}, 0.0, [0.0, -2.0]),
    ],
)
def test_margins(
    corpus: TrainingCorpus, margins: dict[str, float], positive: float, kept: list[float]
) -> None:
    scores = {10: 9.0, 11: 4.0, 12: 3.875, 13: 3.0, 14: 0.0, 15: -2.0, 5: positive}
    ranking = sorted(scores, key=lambda row: -scores[row])
    source = Ranked(ranking, [scores[row] for row in ranking], num_negatives=6, **margins)
    drawn = mine([source], corpus, labelled([5]), epochs=1, seed=0)
    found = drawn.rows[0][~drawn.random[0]].tolist()
    assert sorted((scores[row] for row in found), reverse=True) == kept


def test_the_lowest_scored_positive_counts(corpus: TrainingCorpus) -> None:
    source = Ranked([5, 10, 6, 11], [9.0, 8.0, 7.0, 6.0], num_negatives=1, absolute_margin=0.0)
    drawn = mine([source], corpus, labelled([5, 6], [6, 5], [5], [5, 20]), epochs=2, seed=0)
    given = [set(row[~random]) for row, random in zip(drawn.rows, drawn.random, strict=True)]
    assert given[0] == given[1] == {11}
    assert len(given[2]) == 2
    assert given[2] < {10, 6, 11}
    assert given[3] == set(), "a positive that is not ranked scores below all that are"


def teacher(scores: dict[int, float], asked: list[Rows]) -> Teacher:
    """Scores rows whatever the query, and keeps what it was asked."""

    def answer(queries: LabelledQueries, rows: Rows) -> np.ndarray:
        assert len(queries.queries) == len(queries.positives) == len(rows)
        asked.append(rows)
        known = [[scores.get(row, math.nan) for row in line] for line in rows.tolist()]
        return np.array(known, dtype=np.float32)

    return Teacher("test", answer)


def test_margins_by_a_teacher(corpus: TrainingCorpus) -> None:
    # The source takes 10 to 49 for better than the positive; the teacher dislikes the odd ones.
    source = Ranked(
        [*range(10, 50), 5, 6], num_negatives=4, absolute_margin=1.0, margin_by="teacher"
    )
    scores = {5: 8.0, 6: 5.0, NOTHING: math.nan}
    scores |= {row: 4.0 if row % 2 else 4.5 for row in range(10, 50)}
    asked: list[Rows] = []
    queries = labelled([5, 6], [6], [5])
    drawn = mine([source], corpus, queries, epochs=2, seed=0, teacher=teacher(scores, asked))
    assert not drawn.random.any()
    assert all(row % 2 for row in drawn.rows[:2].flat), "beside the lower of two positives"
    assert any(row % 2 == 0 for row in drawn.rows[2]), "beside a positive of 8 all are fine"
    assert (asked[0] == [[5, 6], [6, NOTHING], [5, NOTHING]]).all()


def test_a_mixture_is_the_shares_of_its_sources(corpus: TrainingCorpus) -> None:
    first = Ranked(range(10, 30), num_negatives=3)
    second = Ranked(range(20, 40), num_negatives=2, range_max=12)
    queries = labelled(*[[5]] * 40)
    drawn = mine([first, second], corpus, queries, epochs=4, seed=0)
    assert drawn.rows.shape == (40, 20)
    assert len(drawn.candidates) == 2
    for groups in drawn.rows.reshape(40, 4, 5).tolist():
        for group in groups:
            assert set(group[:3]) <= set(range(10, 30))
            assert set(group[3:]) <= set(range(20, 32))
            assert len(set(group)) == 5, "what one source drew, no other draws in the same epoch"
        for share in ([g[:3] for g in groups], [g[3:] for g in groups]):
            rows = list(itertools.chain(*share))
            assert len(set(rows)) == len(rows), "without replacement"
    alone = mine([first], corpus, queries, epochs=4, seed=0)
    shares = drawn.rows.reshape(40, 4, 5)[:, :, :3].reshape(40, 12)
    assert (alone.rows[:, :3] == shares[:, :3]).all(), "until the other has drawn, as if alone"


@pytest.mark.parametrize(
    ("negatives", "what", "nearest"),
    [
        ("bm52", "there is no source of negatives named 'bm52'", "bm25"),
        ({"name": "bm25", "num_negative": 3}, "unknown key 'negatives.num_negative'", "num_negat"),
        (["retriever"], "'negatives.0.model' is missing", "str"),
        (
            {"name": "bm25", "relative_margin": 0.1, "margin_by": "teacher"},
            "negatives.margin_by = 'teacher', but there is no teacher",
            "",
        ),
    ],
)
def test_sources_that_cannot_be_used(negatives: Any, what: str, nearest: str) -> None:
    base = {"model": "m", "collection": "c", "output": "o"}
    settings = FinetuneSettings.parse({**base, "negatives": negatives}, "test")
    with pytest.raises(SettingsError) as caught:
        negative_sources(settings.negatives, teacher=False)
    assert what in caught.value.what
    assert caught.value.expected.startswith(nearest)
