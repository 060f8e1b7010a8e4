"""Whatever was added, replaced, deleted and merged: an index in segments is brute force."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.index_bytes import verify

from isthmus.indexes import construction
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.inverted import forward
from isthmus.indexes.inverted.builder import InvertedBuilder
from isthmus.indexes.inverted.forward import weighed_rows
from isthmus.indexes.inverted.quantisation import quantised
from isthmus.indexes.manifest import CorpusOrigin, Description, EncoderOrigin, InvertedSettings
from isthmus.indexes.segments import merge_policy as merging
from isthmus.indexes.segments.index import open_index
from isthmus.indexes.segments.merge_policy import to_merge
from isthmus.indexes.segments.writer import IndexWriter
from isthmus.indexes.verification import read_manifest
from isthmus.records import Document, Ranking

SIZE = 2
# Few, so that scores tie; their sums are exact in any order; the last takes several postings.
LEVELS = (0.0, 0.015625, 0.28125, 1.5, 6.0)
IDS = tuple("abcdefghijklmn")
vectors = st.tuples(*[st.sampled_from(LEVELS)] * SIZE)
batches = st.dictionaries(st.sampled_from(IDS), vectors, min_size=1, max_size=6)
some_ids = st.sets(st.sampled_from(IDS), min_size=1, max_size=5)
Living = dict[str, tuple[tuple[float, ...], str]]  # vector and text, in the order they came


@pytest.fixture(scope="module", autouse=True)
def small_segments_are_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isthmus.config.output.environment", dict)  # quicker
        patch.setattr(merging, "TOGETHER", 3)
        patch.setattr(construction, "ABSORBED", 2)
        patch.setattr(forward, "POSTINGS", 3)
        patch.setattr(forward, "KEPT", 4)
        yield


def describe(kind: str) -> Description:
    dense = kind == "dense"
    return Description(
        kind="dense" if dense else "inverted",
        corpus=CorpusOrigin(spec="c", fingerprint="c"),
        titles=True,
        encoder=EncoderOrigin(name="e", fingerprint="e"),
        dimension=SIZE,
        dtype="float32" if dense else None,
        inverted=None if dense else InvertedSettings(),
    )


def matrix(kind: str, rows: Any) -> Any:
    values = np.array(rows, dtype=np.float32).reshape(-1, SIZE)
    return values if kind == "dense" else scipy.sparse.csr_matrix(values)


def build(folder: Path, kind: str, living: Living) -> Path:
    builder: Any = DenseBuilder if kind == "dense" else InvertedBuilder
    with builder(folder, describe(kind)) as building:
        documents = [Document(i, text, i.upper()) for i, (_, text) in living.items()]
        building.add(documents, matrix(kind, [vector for vector, _ in living.values()]))
        return building.finish({})  # type: ignore[no-any-return]


def expected(kind: str, living: Mapping[str, Any], query: Any, depth: int) -> Ranking:
    def weights(vector: Any) -> list[float]:
        exact = [float(np.float32(weight)) for weight in vector]
        return exact if kind == "dense" else [float(np.floor(100 * weight)) for weight in exact]

    asked = weights(query)
    scores = {
        i: sum(a * b for a, b in zip(weights(vector), asked, strict=True))
        for i, (vector, _) in living.items()
    }
    found = {i: score for i, score in scores.items() if kind == "dense" or score > 0}
    return Ranking.sorted("q", found, depth)


class Segments(RuleBasedStateMachine):
    """A writer against a dict; readers opened on the way keep what they saw."""

    kind = "dense"

    @initialize(first=batches)
    def begin(self, first: dict[str, Any]) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "index"
        self.living: Living = {i: (vector, "first") for i, vector in first.items()}
        build(self.folder, self.kind, self.living)
        self.planned = dict(self.living)
        self.writer = IndexWriter(self.folder)
        self.earlier: list[tuple[Any, Living]] = []
        self.turn = 0

    @rule(batch=batches)
    def add(self, batch: dict[str, Any]) -> None:
        self.turn += 1
        text = f"text {self.turn}"
        documents = [Document(i, text, i.upper()) for i in batch]
        self.writer.add(documents, matrix(self.kind, list(batch.values())))
        for i, vector in batch.items():
            self.planned.pop(i, None)
            self.planned[i] = vector, text

    @rule(ids=some_ids)
    def delete(self, ids: set[str]) -> None:
        self.writer.delete(ids)
        for i in ids:
            self.planned.pop(i, None)

    @rule()
    def commit(self) -> None:
        update = self.writer.commit()
        assert update.documents == len(self.planned)
        before, after = self.living.keys(), self.planned.keys()
        # An id that was deleted and added again was replaced.
        assert update.added == len(after - before)
        assert update.deleted == len(before - after)
        self.living = dict(self.planned)

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
        if not self.living:
            return
        assert read_manifest(self.folder).segments is None
        with tempfile.TemporaryDirectory() as other:
            anew = build(Path(other) / "index", self.kind, self.living)
            for file in (*anew.glob("*.npy"), *anew.glob("*.index.json")):
                assert file.read_bytes() == (self.folder / file.name).read_bytes(), file.name

    @rule(query=vectors, depth=st.integers(1, 16), among=st.none() | some_ids)
    def search(self, query: Any, depth: int, among: set[str] | None) -> None:
        living = {i: v for i, v in self.living.items() if among is None or i in among}
        index = open_index(self.folder)
        found = index.search(matrix(self.kind, query), depth, ["q"], among)
        assert found == [expected(self.kind, living, query, depth)]
        self.earlier = [*self.earlier[-3:], (index, dict(self.living))]

    @precondition(lambda self: self.earlier)
    @rule(query=vectors)
    def search_as_it_was(self, query: Any) -> None:
        for index, living in self.earlier:
            found = index.search(matrix(self.kind, query), 9, ["q"])
            assert found == [expected(self.kind, living, query, 9)]

    @rule()
    def check_documents(self) -> None:
        store = open_index(self.folder).store
        assert len(store) == len(self.living)
        for i in IDS:
            row = store.row(i)
            assert (row is not None) == (i in self.living)
            if row is not None:
                assert store.document(row) == Document(i, self.living[i][1], i.upper())
        assert {store.id(row) for row in range(len(store))} == set(self.living)

    @invariant()
    def nothing_is_left_over(self) -> None:
        # The folder of a whole index holds no segments once nobody writes.
        assert not list(self.folder.glob(".*.npy"))

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
            names = [one.name for one in read_manifest(self.folder).segments or ()]
            entries = {e.name for e in self.folder.glob("segments/*") if e.is_dir()}
            assert entries == set(names)
            shutil.rmtree(self.root)


class InvertedSegments(Segments):
    kind = "inverted"


# Every step waits for the disk, so a failing example is shown as it was found.
MACHINE = settings(
    max_examples=10, stateful_step_count=25, deadline=None, phases=[Phase.reuse, Phase.generate]
)
TestDense = Segments.TestCase
TestDense.settings = MACHINE
TestInverted = InvertedSegments.TestCase
TestInverted.settings = MACHINE


@settings(max_examples=30)
@given(
    st.integers(0, 2**32),
    st.integers(1, 30) | st.integers(300, 700),
    st.sampled_from([
        InvertedSettings(),
        InvertedSettings(terms=3),
        InvertedSettings(weights="float"),
        InvertedSettings(rounding="round", scale=37.0),
    ]),
)  # fmt: skip
def test_rows_come_back_as_they_were_stored(seed: int, rows: int, kept: InvertedSettings) -> None:
    generator = np.random.default_rng(seed)
    values = generator.gamma(1, 1.5, (rows, 40)) * (generator.random((rows, 40)) < 0.2)
    given_ = scipy.sparse.csr_matrix(values.astype(np.float32))
    description = describe("inverted").model_copy(update={"inverted": kept, "dimension": 40})
    names = [str(row) for row in range(rows)]
    stored = quantised(given_, kept, 40, names, kept.terms)
    with tempfile.TemporaryDirectory() as folder:
        with InvertedBuilder(Path(folder) / "index", description, 256) as builder:
            builder.add([Document(name, "") for name in names], given_)
            path = builder.finish({})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forward, "POSTINGS", 100)
            patch.setattr(forward, "KEPT", 300)
            back = scipy.sparse.vstack(list(weighed_rows(path))).tocsr()
    again = quantised(back, kept, 40, names, kept.terms)
    for one, two in zip(stored, again, strict=True):
        np.testing.assert_array_equal(one, two)


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 500)), max_size=60))
def test_merging_comes_to_an_end_with_few_segments(sizes: list[tuple[int, int]]) -> None:
    living = [count for count, _ in sizes]
    rows = [count + deleted for count, deleted in sizes]
    while (chosen := to_merge(living, rows)) is not None:
        parts = living[chosen.start : chosen.stop]
        assert 2 * max(parts) <= sum(parts) or rows[chosen.start] > 2 * parts[0]
        living[chosen.start : chosen.stop] = rows[chosen.start : chosen.stop] = [sum(parts)]
    assert len(living) <= 20
    assert all(2 * count >= all_ for count, all_ in zip(living, rows, strict=True))


@pytest.mark.parametrize("size", [1, 700, 5000])
def test_a_document_is_copied_seldom(size: int) -> None:
    """Equal additions one after the other, as a service makes them."""
    living: list[int] = []
    copied = most = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "TOGETHER", 8)
        for _ in range(4096):
            living.append(size)
            while (chosen := to_merge(living, living)) is not None:
                merged = sum(living[chosen.start : chosen.stop])
                living[chosen.start : chosen.stop] = [merged]
                copied += merged
            most = max(most, len(living))
    assert sum(living) == 4096 * size
    assert copied <= 12 * 4096 * size
    assert most <= 40
