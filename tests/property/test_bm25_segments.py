"""Whatever was added, replaced, deleted and merged: BM25 scores as built anew by bm25s."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import bm25s
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.index_bytes import verify

from isthmus.indexes.bm25 import Analyzer
from isthmus.indexes.bm25.builder import build_bm25
from isthmus.indexes.manifest import Bm25Settings, CorpusOrigin, Description
from isthmus.indexes.segments import merge_policy as merging
from isthmus.indexes.segments.index import open_index
from isthmus.indexes.segments.writer import IndexWriter
from isthmus.indexes.verification import read_manifest
from isthmus.records import Document, Ranking

IDS = tuple("abcdefghijklmn")
WORDS = ("river", "rivers", "bank", "money", "flow", "naïve", "the", "雪国")
texts = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)
batches = st.dictionaries(st.sampled_from(IDS), texts, min_size=1, max_size=6)
some_ids = st.sets(st.sampled_from(IDS), min_size=1, max_size=5)
scoring = st.builds(
    Bm25Settings,
    k1=st.sampled_from([0.0, 0.9, 1.2]),
    b=st.sampled_from([0.0, 0.4, 1.0]),
)


@pytest.fixture(scope="module", autouse=True)
def small_segments_are_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isthmus.config.output.environment", dict)  # quicker
        patch.setattr(merging, "TOGETHER", 3)
        patch.setattr("isthmus.indexes.bm25.builder.ABSORBED", 2)
        yield


def describe(scoring: Bm25Settings) -> Description:
    corpus = CorpusOrigin(spec="c", fingerprint="c")
    return Description(kind="bm25", corpus=corpus, titles=True, bm25=scoring)


def expected(
    scoring: Bm25Settings, living: dict[str, str], query: str, depth: int, among: set[str] | None
) -> Ranking:
    """Scores of bm25s, of an index of the living documents alone."""
    analyzer = Analyzer(scoring)
    terms = [analyzer.terms(text) for text in living.values()]
    asked = analyzer.terms(query)
    vocabulary = {term: number for number, term in enumerate({t: 0 for ts in terms for t in ts})}
    numbers = [vocabulary[term] for term in asked if term in vocabulary]
    if not numbers:
        return Ranking("q")
    peer = bm25s.BM25(k1=scoring.k1, b=scoring.b, method="lucene")
    tokens = [[vocabulary[term] for term in some] for some in terms]
    peer.index((tokens, vocabulary), create_empty_token=False, show_progress=False)
    scores = zip(living, peer.get_scores_from_ids(numbers).tolist(), strict=True)
    found = {i: score for i, score in scores if score > 0 and (among is None or i in among)}
    return Ranking.sorted("q", found, depth)


class Bm25Segments(RuleBasedStateMachine):
    """A writer against a dict; readers opened on the way keep what they saw."""

    @initialize(first=batches, scoring=scoring)
    def begin(self, first: dict[str, str], scoring: Bm25Settings) -> None:
        self.root = tempfile.TemporaryDirectory()
        self.folder = Path(self.root.name) / "index"
        self.scoring = scoring
        self.living = {**first, "z": "bank"}
        self.build(self.folder)
        self.planned = dict(self.living)
        self.writer = IndexWriter(self.folder)
        self.earlier = open_index(self.folder), dict(self.living)

    def build(self, folder: Path) -> Path:
        documents = [Document(i, text) for i, text in self.living.items()]
        return build_bm25(documents, folder, describe(self.scoring), {}, 1e-8)

    @rule(batch=batches, ids=some_ids, first=st.booleans(), query=texts)
    def change(self, batch: dict[str, str], ids: set[str], first: bool, query: str) -> None:
        """Adds and deletes in one commit, in either order."""
        steps = [lambda: self.add(batch), lambda: self.delete(ids)]
        for step in steps if first else reversed(steps):
            step()
        assert self.writer.commit().documents == len(self.planned)
        self.living = dict(self.planned)
        self.search(query, 9, None)

    @rule(batch=batches)
    def add(self, batch: dict[str, str]) -> None:
        self.writer.add([Document(i, text) for i, text in batch.items()])
        for i, text in batch.items():
            self.planned.pop(i, None)
            self.planned[i] = text

    @rule(ids=some_ids)
    def delete(self, ids: set[str]) -> None:
        self.writer.delete(ids)
        for i in ids:
            self.planned.pop(i, None)

    @rule()
    def reopen(self) -> None:
        self.writer.close()
        verify(self.folder)  # while no segments are being merged
        self.planned = dict(self.living)
        self.writer = IndexWriter(self.folder)

    @rule()
    def merge(self) -> None:
        self.writer.merge()
        self.living = dict(self.planned)
        assert read_manifest(self.folder).segments is None
        with tempfile.TemporaryDirectory() as other:
            anew = self.build(Path(other) / "index")
            for file in (*anew.glob("*.npy"), anew / "vocabulary.arrow"):
                assert file.read_bytes() == (self.folder / file.name).read_bytes(), file.name

    @rule(query=texts, depth=st.integers(1, 16), among=st.none() | some_ids)
    def search(self, query: str, depth: int, among: set[str] | None) -> None:
        index = open_index(self.folder)
        found = index.search([query], depth, ["q"], among)
        assert found == [expected(self.scoring, self.living, query, depth, among)]
        before, living = self.earlier
        assert before.search([query], 9, ["q"]) == [expected(self.scoring, living, query, 9, None)]
        self.earlier = index, dict(self.living)

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
            self.root.cleanup()


# Every step waits for the disk, so a failing example is shown as it was found.
TestBm25 = Bm25Segments.TestCase
TestBm25.settings = settings(
    max_examples=10, stateful_step_count=25, deadline=None, phases=[Phase.reuse, Phase.generate]
)


def test_deleted_documents_lengthen_no_other(tmp_path: Path) -> None:
    """Which the machine above finds in most runs only."""
    living = {"a": "bank", "b": "river bank bank"}
    documents = [Document(i, text) for i, text in {**living, "c": "money " * 9}.items()]
    scoring = Bm25Settings()
    folder = build_bm25(documents, tmp_path / "index", describe(scoring), {})
    with IndexWriter(folder) as writer:
        writer.delete(["c"])
        writer.commit()
    (found,) = open_index(folder).search(["bank"], 9, ["q"])
    assert found == expected(scoring, living, "bank", 9, None)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**32), st.floats(1e-8, 1e-5))
def test_the_bound_changes_nothing(seed: int, memory: float) -> None:
    draw = random.Random(seed)
    words = [f"w{number}" for number in range(60)]
    documents = [
        Document(str(row), " ".join(draw.choices(words, range(1, 61), k=draw.randint(0, 400))))
        for row in range(40)
    ]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr("isthmus.indexes.bm25.builder.DOCUMENTS", 7)
        description = describe(Bm25Settings())
        whole = build_bm25(documents, Path(folder) / "whole", description, {})
        bounded = build_bm25(documents, Path(folder) / "bounded", description, {}, memory)
        for file in (*whole.glob("*.npy"), whole / "vocabulary.arrow"):
            assert file.read_bytes() == (bounded / file.name).read_bytes(), file.name
        assert np.load(whole / "lengths.npy").tolist() == [
            len(document.text.split()) for document in documents
        ]
