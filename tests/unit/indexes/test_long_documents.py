"""Documents found by their best passage, exactly, whatever is added, replaced and deleted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.factories import described

from isthmus.errors import InputError
from isthmus.indexes.documents import check_passages
from isthmus.indexes.kinds import builder_for
from isthmus.indexes.long_documents import LongDocuments
from isthmus.indexes.manifest import (
    Description,
    replace_manifest,
    stated_manifest,
)
from isthmus.indexes.segments.index import open_index
from isthmus.indexes.segments.writer import IndexWriter
from isthmus.records import Passage, Ranking, document_of
from isthmus.text.passages import Cut

CUT = Cut(length=16, overlap=0.1)
LONG = described(passages=CUT)
# "a#b" is a document whose passages stand among those of "a", "a!" one before them.
DOCUMENTS = ("a", "a!", "a#b", "b", "c", "d", "e")


def passages(document: str, count: int, text: str = "text") -> list[Passage]:
    return [
        Passage(f"{document}#{n}", f"{text} {document} {n}", "Title", "Head", n, n + 1)
        for n in range(1, count + 1)
    ]


def build(folder: Path, description: Description, rows: list[Passage], vectors: Any) -> Path:
    with builder_for(folder, description) as builder:
        builder.add(rows, vectors)
        return builder.finish({})


def best(scores: Iterable[tuple[str, float]], depth: int) -> list[tuple[str, float]]:
    found: dict[str, float] = {}
    for passage, score in scores:
        document = document_of(passage)
        found[document] = max(score, found.get(document, -np.inf))
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))[:depth]


@pytest.mark.parametrize("depth", [1, 2, 3, 7, 50])
def test_documents_rank_by_their_best_passage_with_ties_by_their_own_ids(
    tmp_path: Path, depth: int
) -> None:
    draw = np.random.default_rng(3)
    # One document has most of the best passages, so that a shallow search finds few others.
    rows = [one for name in DOCUMENTS for one in passages(name, 60 if name == "b" else 3)]
    vectors = draw.integers(-2, 3, (len(rows), 4)).astype(np.float32)
    vectors[[row.id.startswith("b#") for row in rows]] += 1
    index = LongDocuments(open_index(build(tmp_path / "i", LONG, rows, vectors)))
    queries = draw.integers(0, 3, (5, 4)).astype(np.float32)
    found = index.search(queries, depth, [f"q{n}" for n in range(5)])
    for query, ranking in zip(queries, found, strict=True):
        scores = zip((row.id for row in rows), (vectors @ query).tolist(), strict=True)
        assert list(ranking) == best(scores, depth)
    (among,) = index.search(queries[:1], 5, ["q"], among=["a", "c", "unknown"])
    assert set(among.document_ids) == {"a", "c"}
    assert dict(among).items() <= dict(index.search(queries[:1], 9, ["q"])[0]).items()
    assert len(index) == len(DOCUMENTS)
    assert [index.store.row(index.store.id(row)) for row in range(7)] == list(range(7))


def test_equal_scores_of_many_passages_are_all_looked_at(tmp_path: Path) -> None:
    rows = passages("a!", 30) + passages("a", 1)  # "a!#30" sorts before "a#1", "a" before "a!"
    index = open_index(build(tmp_path / "i", LONG, rows, np.ones((31, 4), dtype=np.float32)))
    (ranking,) = LongDocuments(index).search(np.ones((1, 4), dtype=np.float32), 1, ["q"])
    assert ranking.document_ids == ("a",)


def test_the_best_passage_is_shown_with_its_heading_and_place(tmp_path: Path) -> None:
    rows = passages("a", 3) + passages("a#b", 2)
    vectors = np.eye(5, 4, dtype=np.float32)
    folder = build(tmp_path / "i", LONG, rows, vectors)
    index = LongDocuments(open_index(folder))
    query = np.array([[0, 1, 0, 2]], dtype=np.float32)
    assert index.shown(query, ["a#b", "a"]) == [rows[3], rows[1]]
    assert index.shown(None, ["a"]) == [rows[0]]


def test_bm25_answers_with_documents_too(tmp_path: Path) -> None:
    of_words = described("bm25", passages=CUT)
    rows = [*passages("a", 9, "river"), *passages("b", 2, "river bank"), *passages("c", 1, "snow")]
    index = LongDocuments(open_index(build(tmp_path / "i", of_words, rows, None)))
    assert index.has_tokens("river")
    (ranking,) = index.search(["river bank"], 1, ["q"])
    assert ranking.document_ids == ("b",)
    (ranking,) = index.search(["river"], 10, ["q"])
    assert set(ranking.document_ids) == {"a", "b"}
    assert [one.id for one in index.shown(["snow"], ["c", "a"])] == ["c#1", "a#1"]


def texts(folder: Path) -> dict[str, str]:
    store = open_index(folder).store
    return {(one := store.document(row)).id: one.text for row in range(len(store))}


def test_all_passages_of_a_document_come_and_go_together(tmp_path: Path) -> None:
    rows = passages("a", 4) + passages("a#b", 2) + passages("b", 1)
    folder = build(tmp_path / "i", LONG, rows, np.ones((7, 4), dtype=np.float32))
    with IndexWriter(folder) as writer:
        assert writer.missing(["a", "a#b", "a#1", "c"]) == ["a#1", "c"]
        new = passages("a", 2, "new") + passages("c", 3, "first") + passages("c", 2, "second")
        writer.add(new[:6], np.ones((6, 4), dtype=np.float32))
        writer.add(new[6:], np.ones((1, 4), dtype=np.float32))  # a document across two blocks
        writer.delete(["b"])
        update = writer.commit()
    assert (update.added, update.replaced, update.deleted, update.documents) == (1, 1, 1, 3)
    expected = {
        **{f"a#{n}": f"new a {n}" for n in (1, 2)},
        **{f"a#b#{n}": f"text a#b {n}" for n in (1, 2)},
        **{f"c#{n}": f"second c {n}" for n in (1, 2)},
    }
    assert texts(folder) == expected
    index = LongDocuments(open_index(folder))
    (ranking,) = index.search(np.ones((1, 4), dtype=np.float32), 9, ["q"])
    assert ranking == Ranking("q", ("a", "a#b", "c"), (4.0, 4.0, 4.0))
    with IndexWriter(folder) as writer:
        writer.delete(["c"])
        assert writer.merge().documents == 2
    assert texts(folder) == {i: text for i, text in expected.items() if i[0] != "c"}
    (shown,) = LongDocuments(open_index(folder)).shown(None, ["a"])
    assert shown == Passage("a#1", "new a 1", "Title", "Head", 1, 2)


def test_rows_that_are_not_the_stated_passages_are_refused(tmp_path: Path) -> None:
    vectors = np.ones((2, 4), dtype=np.float32)
    folder = build(tmp_path / "i", described(), passages("a", 2), vectors)
    stated = stated_manifest(folder).model_copy(update={"passages": CUT})
    replace_manifest(folder, stated)
    with pytest.raises(InputError, match="its rows are not what is stated"):
        open_index(folder)
    with pytest.raises(ValueError, match="ids that are not of passages"):
        check_passages(_table([*passages("a", 1), Passage("b", "text")]), stated=True)


def _table(rows: list[Passage]) -> pa.Table:
    columns = ("id", "title", "text", "heading", "start", "end")
    values = {name: [getattr(row, name) for row in rows] for name in columns}
    kinds = [pa.large_string()] * 4 + [pa.int64()] * 2
    return pa.table(values, schema=pa.schema(list(zip(columns, kinds, strict=True))))
