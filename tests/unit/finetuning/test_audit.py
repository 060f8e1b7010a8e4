"""The audit finds what was planted: false negatives, near-duplicates; its page is whole."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tests.factories import training_corpus, write_collection

from isthmus.collections import Problems
from isthmus.finetuning.audit import Audit, audit, page
from isthmus.finetuning.candidates import MiningSettings, Ranker, Rows, TrainingCorpus
from isthmus.finetuning.mining import mine
from isthmus.finetuning.negatives import Source
from isthmus.finetuning.pairs import LabelledQueries, labelled_queries
from isthmus.finetuning.teachers import Teacher
from isthmus.records import Query, Ranking
from isthmus.text.tokenizer import new_tokenizer

PLENTY = [f"plain document {n} of words a{n} b{n} c{n}" for n in range(40)]
TEXTS = [
    "the river bank floods when the tide is high and snow melts in spring",  # 0, relevant to q0
    "when snow melts in spring the river bank floods and the tide is high",  # 1: the same words
    "the river bank floods when the tide is high and snow melts in spring",  # 2: the same text
    "how to open a bank account",  # 3, relevant to q1: a query of another split
    "<script>alert('tide')</script> & more",  # 4, relevant to q2
    *PLENTY,
]
TRAIN = {
    "q0": "Why does the river flood?",
    "q1": "plain document 0 of words a0 b0 c0",  # the text of a document that is not relevant
    "q2": "alert, TIDE!",
    "q3": "The title",  # of its relevant document, 5
}
TEST = {"t0": "why does the RIVER flood", "t1": "How to open a bank account?"}
TOKENIZER = new_tokenizer(TEXTS, 400)


class Given(Source):
    """Ranks the documents in the order of the corpus, the first best."""

    def open(self, corpus: TrainingCorpus) -> Ranker:
        ids = tuple(f"d{n}" for n in range(len(TEXTS)))
        scores = tuple(float(len(TEXTS) - n) for n in range(len(TEXTS)))
        return Ranker("given", lambda queries, depth: [
            Ranking(query.id, ids, scores) for query in queries
        ])  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingCorpus:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    folder = write_collection(
        tmp_path / "collection",
        {f"d{n}": text for n, text in enumerate(TEXTS)},
        TRAIN | TEST,
        {
            "train": [("q0", "d0"), ("q1", "d3"), ("q2", "d4"), ("q3", "d5")],
            "test": [("t0", "d0"), ("t1", "d3")],
        },
        titles={"d5": "The Title"},
    )
    return training_corpus(folder, TOKENIZER)


def look(corpus: TrainingCorpus, teacher: Teacher | None = None, **values: float) -> Audit:
    labelled = labelled_queries(corpus.collection, "train", corpus.rows, Problems())
    settings = {"num_negatives": 30, "range_max": 60, **values}
    source = Given(MiningSettings.parse(settings, "test"))
    mined = mine([source], corpus, labelled, epochs=1, seed=0)
    return audit(mined, [source], corpus, labelled, "train", teacher)


def test_counts(corpus: TrainingCorpus) -> None:
    found = look(corpus, num_negatives=len(TEXTS) - 1)
    counts, negatives = dict(found.counts), 4 * (len(TEXTS) - 1)
    assert counts["sampled"] == f"4 queries, {negatives} negatives of the first epoch"
    # By the source, whatever stands before the positive in the corpus; of documents 0 and 2, which
    # are the same text, one.
    assert found.suspects == 0 + 2 + 3 + 4
    assert counts["score no less than the positive, by the source"].startswith("9 of ")
    assert counts["nearly the words of a positive"].startswith(f"1 of {negatives} ")
    assert counts["relevant documents that Given ranks"] == "4 of 4 (100.0%)"
    assert counts["training queries that are queries of test too"] == "1"
    above = []
    for one in found.worst:
        (name,) = (name for name, text in TRAIN.items() if text == one.query)
        row, place = int(one.negative.id[1:]), {"q1": 3, "q2": 4, "q3": 5}[name]
        assert one.positive.id == f"d{place}"
        assert f"rank {row + 1}, +{place - row} above the positive" in one.facts
        above.append(place - row)
    assert len(above) == 3
    assert above == sorted(above, reverse=True)
    (near,) = found.near
    assert near.negative.id == "d1"
    assert "likeness 1.00" in near.facts
    # Of documents that are the same text, a group has one: a query lacks one candidate.
    assert counts["random, for want of candidates"].startswith(f"4 of {negatives} ")


def test_ranks_and_scores_are_those_of_the_source(corpus: TrainingCorpus) -> None:
    found = look(corpus, num_negatives=10, range_min=10, range_max=20)
    ranks = [int(one.facts.split("rank ")[1].split(",")[0]) for one in found.samples]
    assert sorted(ranks) == sorted([*range(11, 21)] * 4)
    assert [one.negative.id for one in found.samples] == [f"d{rank - 1}" for rank in ranks]


def test_a_teacher_judges_better_than_the_source(corpus: TrainingCorpus) -> None:
    unjudged = ("q0", 1)  # document 1 answers it, and nobody said so

    def scores(asked: LabelledQueries, rows: Rows) -> np.ndarray:
        def score(query: Query, own: list[int], row: int) -> float:
            if row < 0:
                return math.nan
            return 0.9 if row in own else 0.95 if (query.id, row) == unjudged else 0.1

        lines = zip(asked.queries, asked.positives, rows.tolist(), strict=True)
        return np.array([[score(q, own, row) for row in line] for q, own, line in lines])

    found = look(corpus, Teacher("test", scores), num_negatives=len(TEXTS) - 1)
    assert (found.judge, found.suspects) == ("teacher", 1)
    [worst] = found.worst
    assert worst.negative.id == "d1"
    assert "+0.05 above the positive" in worst.facts
    assert "of the negatives score no less than the positive, by the teacher" in found.verdict
    assert found.compared == 4 * (len(TEXTS) - 1) - 4, "random ones are not asked for"


class Reader(HTMLParser):
    """What a browser would load, and the tags it would see."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_holds_everything_and_loads_nothing(corpus: TrainingCorpus) -> None:
    text = page(look(corpus))
    reader = Reader()
    reader.feed(text)
    assert not reader.loaded
    assert not {"script", "link", "img"} & reader.tags
    assert "url(" not in text
    assert "&lt;script&gt;alert(&#x27;tide&#x27;)&lt;/script&gt; &amp; more" in text
    for query in TRAIN.values():
        assert query in text
    for heading in ("Suspected false negatives", "Near-dup", "Samples, drawn"):
        assert heading in text
    assert TEXTS[1] in text, "the near-duplicate is there to read"
