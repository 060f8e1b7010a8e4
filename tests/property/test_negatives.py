"""Whatever the candidates: a group has no positive and no text twice; turns are taken fairly."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isthmus.finetuning.candidates import NOTHING, Candidates, MiningSettings
from isthmus.finetuning.mining import draw, highest_allowed, shuffled
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.records import Query

DOCUMENTS = 60
ROWS = st.integers(0, DOCUMENTS - 1)


class Corpus(SimpleNamespace):
    """The part of a tokenised corpus that drawing knows: a key per document, some of them equal."""

    def __len__(self) -> int:
        return len(self.keys)


@st.composite
def cases(drawing: Any) -> tuple[Any, ...]:
    keys = np.arange(DOCUMENTS)
    for one, other in drawing(st.lists(st.tuples(ROWS, ROWS), max_size=15)):
        keys[one] = keys[other]
    positives = drawing(st.lists(ROWS, min_size=1, max_size=3, unique=True))
    others = [row for row in range(DOCUMENTS) if keys[row] not in keys[positives]]
    queues = drawing(
        st.lists(
            st.lists(st.sampled_from(others), unique=True, max_size=20), min_size=1, max_size=3
        )
    )
    counts = [drawing(st.integers(1, 4)) for _ in queues]
    epochs, seed = drawing(st.integers(1, 6)), drawing(st.integers(0, 3))
    return Corpus(keys=keys), positives, queues, counts, epochs, seed


@given(cases())
def test_groups(case: Any) -> None:
    corpus, positives, queues, counts, epochs, seed = case
    turns = [[np.array(queue, dtype=np.int32)] for queue in queues]
    rows, random = draw(turns, [positives], corpus, counts, epochs, seed)
    again, _ = draw(turns, [positives], corpus, counts, epochs, seed)
    assert (rows == again).all()
    assert rows.shape == random.shape == (1, epochs * sum(counts))
    ends = list(itertools.accumulate(counts, initial=0))
    given_by: list[list[int]] = [[] for _ in queues]
    for epoch in range(epochs):
        start = epoch * sum(counts)
        group = rows[0, start : start + sum(counts)]
        keys = corpus.keys[group].tolist()
        assert not set(keys) & set(corpus.keys[positives].tolist())
        assert len(set(keys)) == len(keys)
        for place, (first, last) in enumerate(itertools.pairwise(ends)):
            drawn = group[first:last][~random[0, start + first : start + last]].tolist()
            assert set(drawn) <= set(queues[place])
            given_by[place] += drawn
            if len(drawn) < last - first:  # only when nothing that it could give was left
                taken = set(corpus.keys[group[:last]].tolist())
                assert {int(key) for key in corpus.keys[queues[place]]} <= taken
    texts = {int(key) for key in corpus.keys[queues[0]]}
    if len(queues) == 1 and len(texts) == len(queues[0]):
        # Nobody was passed over, so that the turns of any two differ by one at most.
        times = Counter(given_by[0])
        turns_taken = [times[row] for row in queues[0]] or [0]
        assert max(turns_taken) - min(turns_taken) <= 1


@given(
    st.lists(ROWS, unique=True, max_size=40),
    st.lists(st.floats(-10, 10, width=32), min_size=40, max_size=40),
    st.lists(ROWS, min_size=1, max_size=3, unique=True),
    st.fixed_dictionaries(
        {"range_min": st.integers(0, 10), "range_max": st.integers(11, 40)},
        optional={"absolute_margin": st.floats(0, 5), "relative_margin": st.floats(0, 2)},
    ),
)
def test_what_may_be_drawn_is_what_a_plain_loop_finds(
    ranking: list[int], scores: list[float], positives: list[int], values: dict[str, Any]
) -> None:
    settings = MiningSettings.parse(values, "test")
    depth = settings.range_max
    rows = (ranking + [NOTHING] * 40)[:depth]
    ordered = sorted(scores, reverse=True)[: len(ranking)] + [-np.inf] * 40
    corpus: Any = Corpus(keys=np.arange(DOCUMENTS) // 2)  # every text twice
    found = shuffled(
        Candidates(np.array([rows], np.int32), np.array([ordered[:depth]], np.float32)),
        LabelledQueries([Query("q", "text")], [positives]),
        corpus,
        settings,
        (0, 0),
    )
    score = dict(zip(rows, ordered[:depth], strict=False))
    lowest = min(score.get(row, -np.inf) for row in positives)
    expected = set()
    for rank, row in enumerate(rows):
        if row == NOTHING or rank < settings.range_min:
            continue
        if any(row // 2 == positive // 2 for positive in positives):
            continue
        if settings.has_margin and score[row] > highest_allowed(lowest, settings):
            continue
        expected.add(row)
    assert len(found) == 1
    assert sorted(found[0].tolist()) == sorted(expected)
