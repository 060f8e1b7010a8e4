"""However it was added, replaced, deleted, merged and filled in: an index is as built at once."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.factories import BM25, ENCODER, fill, index_of, manifest
from tests.index_bytes import verify

from isthmus.indexes import writer as writing
from isthmus.indexes.filters import parse
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import (
    Bm25Field,
    Bm25Settings,
    DenseField,
    DenseSettings,
    SparseField,
    SparseSettings,
    TokensField,
    TokensSettings,
)
from isthmus.indexes.ragged import Ragged, TokenVectors, with_different_pieces
from isthmus.indexes.sparse import forward
from isthmus.indexes.tokens.codes import Asked, compressed
from isthmus.indexes.tokens.field import scores
from isthmus.indexes.writer import IndexWriter, Update
from isthmus.records import Document, Passage, Ranking, document_of
from isthmus.text.passages import Cut

# Sums of these are exact in 16 bits, in any order; few, so that scores tie. As weights of terms,
# the largest takes several postings.
NUMBERS = {
    "river": (0.0, 0.28125, 1.5), "rivers": (6.0, 0.0, 0.0), "bank": (1.5, 0.015625, 0.0),
    "money": (0.0, 1.5, 0.28125), "naïve": (0.0, 0.0, 0.0), "雪国": (6.0, 1.5, 0.0),
    "the": (0.0, 0.0, 6.0),
}  # fmt: skip
SIZE = 3
SIGNS = np.array([1, -1, 1])
# "a!" sorts between "a" and "a#1"; no id says what is a passage of what.
IDS = ("a", "a!", "a#1", "a#b", "b", "cc", "", "é", "1", "10", "2", "x" * 300)
DENSE = {"encoder": ENCODER, "dimension": SIZE}
TOKENS = {**DENSE, "centre": [1.0, 0.5, -0.25]}
FIELDS = {
    "bm25": BM25,
    "words": Bm25Field(titles=False, settings=Bm25Settings(k1=0.0, b=0.4)),
    "dense": DenseField(**DENSE),
    "half": DenseField(**DENSE, settings=DenseSettings(dtype="float16")),
    "sparse": SparseField(**DENSE),
    "float": SparseField(**DENSE, settings=SparseSettings(weights="float")),
    "strong": SparseField(**DENSE, settings=SparseSettings(terms=1, rounding="round", scale=37.0)),
    "tokens": TokensField(**TOKENS, settings=TokensSettings(bits=4, pooling=2)),
    "computed": TokensField(**TOKENS, settings=TokensSettings(bits=4, pooling=2, stored=False)),
}
PLAIN = [name for name in FIELDS if name not in ("bm25", "words", "strong", "tokens", "computed")]
"""Fields whose scores are products of one vector each."""
PIECES = {word: 7 * number for number, word in enumerate(NUMBERS)}
VECTORS = [name for name in FIELDS if FIELDS[name].on_passages]
CUT = Cut(length=16, overlap=0)

texts = st.lists(st.sampled_from(sorted(NUMBERS)), max_size=4).map(" ".join)
batches = st.dictionaries(st.sampled_from(IDS), texts, min_size=1, max_size=6)
some_ids = st.sets(st.sampled_from(IDS), min_size=1, max_size=5)


@pytest.fixture(scope="module", autouse=True)
def small_segments_are_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "TOGETHER", 3)
        patch.setattr(forward, "POSTINGS", 3)
        patch.setattr(forward, "KEPT", 4)
        yield


def document(name: str, text: str) -> Document:
    return Document(name, text, name.upper(), metadata={"words": len(text.split())})


def passages(one: Document) -> list[Passage]:
    """A passage of every word."""
    words = one.text.split()
    starts = [0, *accumulate(len(word) + 1 for word in words)]
    return [
        Passage(
            f"{one.id}#{n}", word, one.title, "", start, start + len(word), metadata=one.metadata
        )
        for n, (word, start) in enumerate(zip(words or [""], starts, strict=False), start=1)
    ]


def vector(field: str, text: str) -> Any:
    found = np.sum([NUMBERS[word] for word in text.split()] or [(0.0,) * SIZE], axis=0)
    return found * SIGNS if field in ("dense", "half") else found


def of_tokens(some: list[str]) -> TokenVectors:
    """A vector for each word."""
    words = [text.split() for text in some]
    vectors = [
        np.array([NUMBERS[one] for one in each], np.float32).reshape(-1, SIZE) for each in words
    ]
    pieces = [np.array([PIECES[one] for one in each], dtype=np.int32) for each in words]
    return TokenVectors(
        Ragged.of(vectors, np.empty((0, SIZE), dtype=np.float32)),
        Ragged.of(pieces, np.empty(0, dtype=np.int32)),
    )


def encoded(field: str, some: list[str]) -> Any:
    if isinstance(FIELDS[field], TokensField):
        return with_different_pieces(of_tokens(some))
    rows = np.array([vector(field, text) for text in some], dtype=np.float32).reshape(-1, SIZE)
    return rows if field in ("dense", "half") else scipy.sparse.csr_matrix(rows)


def searched(field: str, text: str) -> Any:
    """What search multiplies."""
    found = vector(field, text)
    return np.floor(100 * found) if field == "sparse" else found


def asked(field: str, text: str) -> Any:
    if isinstance(FIELDS[field], TokensField):
        return of_tokens([text])
    return encoded(field, [text]) if field in VECTORS else [text]


def build(folder: Path, living: Mapping[str, str], fields: Any, cut: Cut | None) -> Index:
    some = [document(*one) for one in living.items()]
    rows = [row for one in some for row in (passages(one) if cut else [one])]
    given_ = {n: encoded(n, [row.text for row in rows]) for n in fields if n in VECTORS}
    return index_of(folder, some, fields, given_, rows, cut)


class Segments(RuleBasedStateMachine):
    """A writer against a dict; readers opened on the way keep what they saw."""

    @initialize(
        first=batches,
        names=st.sampled_from([{*FIELDS}, {"bm25"}, {"dense"}, {"sparse", "tokens"}]),
        cut=st.sampled_from([CUT, None]),
    )
    def begin(self, first: dict[str, str], names: set[str], cut: Cut | None) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "index"
        self.cut = cut if names & {*VECTORS} else None
        self.later = cut
        self.fields = {name: one for name, one in FIELDS.items() if name in names}
        self.living = dict(first)
        build(self.folder, first, self.fields, self.cut)
        self.planned = dict(first)
        self.writer = IndexWriter(self.folder)
        self.earlier: list[tuple[Index, dict[str, str], dict[str, Any], Cut | None]] = []

    @rule(batch=batches)
    def add(self, batch: dict[str, str]) -> None:
        some = [document(*one) for one in batch.items()]
        rows = [row for one in some for row in (passages(one) if self.cut else [one])]
        given_ = {n: encoded(n, [r.text for r in rows]) for n in self.fields if n in VECTORS}
        self.writer.add(some, rows, given_)
        for name, text in batch.items():
            self.planned.pop(name, None)
            self.planned[name] = text

    @rule(ids=some_ids)
    def delete(self, ids: set[str]) -> None:
        self.writer.delete(ids)
        for name in ids:
            self.planned.pop(name, None)
        assert self.writer.missing(IDS) == [one for one in IDS if one not in self.planned]

    @rule()
    def commit(self) -> None:
        before, after = self.living.keys(), self.planned.keys()
        update = self.writer.commit()
        # An id that was deleted and added again was replaced.
        counts = len(after - before), len(before - after), len(after)
        assert (update.added, update.deleted, update.documents) == counts
        self.living = dict(self.planned)

    @rule()
    def reopen(self) -> None:
        self.writer.close()
        verify(self.folder)
        self.planned = dict(self.living)
        self.writer = IndexWriter(self.folder)

    @rule(everything=st.booleans())
    def merge(self, everything: bool) -> None:
        self.writer.merge(everything)
        if not everything or not self.living:
            return
        with tempfile.TemporaryDirectory() as other:
            (anew,) = build(Path(other) / "i", self.living, self.fields, self.cut).segments
            (merged,) = Index.open(self.folder).segments
            assert {name.partition("/")[0] for name in merged.about.files} >= {*self.fields}
            for name in merged.about.files:
                if not name.endswith(".arrow"):  # whose blocks are cut otherwise
                    one, two = (s.folder / name for s in (merged, anew))
                    assert one.read_bytes() == two.read_bytes(), name

    @precondition(lambda self: self.planned == self.living and len(self.fields) < len(FIELDS))
    @rule(names=st.sets(st.sampled_from(sorted(FIELDS)), min_size=1))
    def grow(self, names: set[str]) -> None:
        new = {name: FIELDS[name] for name in names if name not in self.fields}
        vectors = [name for name in new if name in VECTORS]
        self.commit()
        if not new:
            return

        def encode(blocks: Any) -> Any:
            for rows in blocks:
                some = [row.text for row in rows]
                yield rows, {name: encoded(name, some) for name in vectors}

        def cut(some: Any) -> Any:
            return (row for one in some for row in passages(one))

        if vectors and not {*self.fields} & {*VECTORS}:
            self.cut = self.later
        self.writer.add_fields(new, encode, None if self.cut is None else (self.cut, cut))
        self.fields = {**self.fields, **new}

    @rule(text=texts, depth=st.integers(1, 9), few=st.none() | st.integers(0, 4))
    def search(self, text: str, depth: int, few: int | None) -> None:
        index = Index.open(self.folder)
        state = index, dict(self.living), dict(self.fields), self.cut
        self.earlier = [*self.earlier[-2:], state]
        with tempfile.TemporaryDirectory() as other:
            some = {n: one for n, one in self.fields.items() if n not in (*PLAIN, "computed")}
            anew = build(Path(other) / "i", self.living, some or self.fields, self.cut)
            for name in some:
                found = [look(one, name, text, depth, few) for one in (index, anew)]
                assert found[0] == found[1], name
        for state in self.earlier:
            check(*state, text, depth, few)

    @rule()
    def read(self) -> None:
        index = Index.open(self.folder)
        some = [document(*one) for one in self.living.items()]
        assert {one: index.document(one) for one in IDS} == {
            one: next((d for d in some if d.id == one), None) for one in IDS
        }
        assert sorted(index.ids()) == sorted(self.living)
        rows = [row for one in some for row in (passages(one) if self.cut else [one])]
        for name in (one for one in self.fields if one in PLAIN):
            back: dict[str, Any] = {}
            for batch in index.batches([name]):
                part = batch.vectors[name]
                part = part.toarray() if scipy.sparse.issparse(part) else part
                back |= {r.id: (r, v.tolist()) for r, v in zip(batch.rows, part, strict=True)}
            assert back == {r.id: (r, searched(name, r.text).tolist()) for r in rows}

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
            with IndexWriter(self.folder) as opened:  # clears up
                abouts = opened.manifest.segments
            named = {f"segments/{one.name}/{file}" for one in abouts for file in one.files}
            files = [one for one in self.folder.rglob("*") if one.is_file()]
            left = {one.relative_to(self.folder).as_posix() for one in files}
            assert left - {".lock"} == named | {"manifest.json"}
            shutil.rmtree(self.root)


def look(index: Index, name: str, text: str, depth: int, few: int | None) -> Ranking:
    masks = None if few is None else index.masks_of(IDS[:few])
    if name not in VECTORS and not index.has_tokens(name, text):
        return Ranking("q")
    (found,) = index.search(name, asked(name, text), depth, ["q"], masks)
    return found


def check(
    index: Index,
    living: dict[str, str],
    fields: dict[str, Any],
    cut: Cut | None,
    text: str,
    depth: int,
    few: int | None,
) -> None:
    """Fields of vectors against brute force: documents, passages, the best of these, filters."""
    rows = [
        row
        for one in (document(*item) for item in living.items())
        for row in (passages(one) if cut else [one])
    ]
    for name in (one for one in fields if one in (*PLAIN, "tokens")):
        if name == "tokens":
            of_rows = of_words(index, rows, text)
        else:
            query = searched(name, text)
            of_rows = {row.id: float(query @ searched(name, row.text)) for row in rows}
        if name not in ("dense", "half", "tokens"):
            of_rows = {row: score for row, score in of_rows.items() if score > 0}
        best_of: dict[str, float] = {}
        for row, score in of_rows.items():
            owner = document_of(row) if cut else row
            best_of[owner] = max(score, best_of.get(owner, score))
        if name == "tokens":
            assert index.scored(name, asked(name, text), IDS) == best_of
            if cut:
                named = [row.id for row in rows]
                assert index.scored(name, asked(name, text), named, "passage") == of_rows
        if name == "tokens" and "computed" in fields:
            found = index.scored("computed", asked(name, text), IDS, encode=from_texts)
            assert found == best_of
        some = {one: s for one, s in best_of.items() if few is None or one in IDS[:few]}
        assert look(index, name, text, depth, few) == Ranking.sorted("q", some, depth)
        if any(living):
            masks = index.masks(parse({"words": {"$gte": 2}}))
            (found,) = index.search(name, asked(name, text), depth, ["q"], masks)
            long = {one: s for one, s in best_of.items() if len(living[one].split()) >= 2}
            assert found == Ranking.sorted("q", long, depth)
        if cut is None:
            continue
        (found,) = index.search(name, asked(name, text), depth, ["q"], by="passage")

        def place(row: str) -> tuple[float, str, int]:
            return -of_rows[row], document_of(row), int(row.rpartition("#")[2])  # noqa: B023

        ordered = sorted(of_rows, key=place)[:depth]
        assert found == Ranking("q", tuple(ordered), tuple(of_rows[row] for row in ordered))
        best = {document_of(row): row for row in sorted(of_rows, key=place, reverse=True)}
        shown = index.best_passages(name, asked(name, text), list(living))
        assert [one.id for one in shown] == [best.get(one, f"{one}#1") for one in living]


def from_texts(some: list[Document]) -> TokenVectors:
    return with_different_pieces(of_tokens([one.text for one in some]))


def of_words(index: Index, rows: list[Any], text: str) -> dict[str, float]:
    """The score of each row by the field `tokens`, compared with the query by itself."""
    about, query = FIELDS["tokens"], of_tokens([text])
    assert isinstance(about, TokensField)
    given_ = index.asked("tokens", query).pieces.values
    words, texts_ = text.split(), [row.text.split() for row in rows]
    holding = [sum(word in one for one in texts_) for word in words]
    weights = np.log((len(rows) + 1) / (np.array(holding) + 0.5))
    np.testing.assert_allclose(given_, weights / weights.sum(), rtol=1e-5)
    if not words:
        return {}
    one = Asked.of(about, query.vectors.row(0), given_)
    found = {}
    for row in rows:
        if row.text:
            stored = compressed(about, from_texts([row]))
            found[row.id] = float(scores(about, [one], stored, np.arange(1))[0, 0])
    return found


# Every step writes much, so a failing example is shown as it was found.
TestSegments = Segments.TestCase
TestSegments.settings = settings(
    max_examples=8, stateful_step_count=20, deadline=None, phases=[Phase.reuse, Phase.generate]
)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**32), st.floats(1e-8, 1e-5))
def test_bm25_is_the_same_in_little_memory(seed: int, memory: float) -> None:
    draw = random.Random(seed)
    words = [f"w{number}" for number in range(60)]
    some = [
        Document(str(row), " ".join(draw.choices(words, range(1, 61), k=draw.randint(0, 400))))
        for row in range(40)
    ]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr("isthmus.indexes.bm25.builder._DOCUMENTS", 7)
        (whole,) = index_of(Path(folder) / "whole", some, {"bm25": BM25}).segments
        bounded = Path(folder) / "bounded"
        with IndexWriter(bounded, manifest({"bm25": BM25}), memory=memory) as opened:
            fill(opened, some)
            opened.commit()
        (small,) = Index.open(bounded).segments
        assert small.about.files == whole.about.files
        lengths = np.load(small.folder / "bm25" / "lengths.npy").tolist()
        assert lengths == [len(one.text.split()) for one in some]


def test_merging_keeps_segments_few_and_copies_a_document_seldom(tmp_path: Path) -> None:
    """Equal additions one after the other, as a service makes them."""
    copied = most = 0
    build(tmp_path / "i", {"a": "bank"}, {"bm25": BM25}, None)
    with IndexWriter(tmp_path / "i") as opened:
        for number in range(60):
            one = Document(str(number), "bank")
            opened.add([one], [one], {})
            assert opened.commit() == Update(1, 0, 0, number + 2)
            before = {s.name: s.living for s in opened.manifest.segments}
            opened.merge()
            after = {s.name: s.living for s in opened.manifest.segments}
            copied += sum(count for name, count in after.items() if name not in before)
            most = max(most, len(after))
    assert sum(after.values()) == 61
    assert copied <= 8 * 61
    assert most <= 8
