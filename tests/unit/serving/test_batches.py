"""Queries that wait are answered together, each as it would be alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from threading import Event

import pytest

from isthmus.indexes.filters import Filter, parse
from isthmus.records import Query, Ranking
from isthmus.retrieval.searcher import Retriever, open_searcher
from isthmus.serving.batches import Batches, Found
from isthmus.serving.timing import QueryVectors

TEXTS = ["river bank", "snow in winter", "a loan of money", "the old mill", "東京", "boats"]


class Gate:
    """A retriever that waits for a sign at its first search, and notes how many came together."""

    def __init__(self, inner: Retriever, refused: str = "") -> None:
        self.open, self.reached = Event(), Event()
        self.sizes: list[int] = []
        self.inner, self.refused = inner, refused

    def search(
        self,
        queries: Sequence[Query],
        depth: int,
        problems: object,
        filter: Filter | None,  # noqa: A002 (the searcher's own name)
    ) -> list[Ranking]:
        self.sizes.append(len(queries))
        self.reached.set()
        assert self.open.wait(30)
        if any(query.text == self.refused for query in queries):
            raise ValueError(self.refused)
        return self.inner.search(queries, depth, filter=filter)


@pytest.fixture
def batches() -> Iterator[Batches]:
    found = Batches("searching", together=4)
    yield found
    found.close()


def identity(ranking: Ranking) -> Ranking:
    return ranking


async def asked(
    batches: Batches,
    gate: Gate,
    texts: Sequence[str],
    depths: Sequence[int] = (3,),
    filters: Sequence[Filter | None] = (None,),
) -> list[Found | BaseException]:
    """The answers to one query, and to those that came while it was answered."""
    first = asyncio.create_task(batches.search(gate, "first", 3, identity))  # type: ignore[arg-type]
    await asyncio.to_thread(gate.reached.wait, 30)
    others = [
        asyncio.create_task(batches.search(gate, text, depth, identity, filter_))  # type: ignore[arg-type]
        for text, depth, filter_ in zip(texts, cycle(depths), cycle(filters), strict=False)
    ]
    await asyncio.sleep(0)
    gate.open.set()
    return await asyncio.gather(first, *others, return_exceptions=True)


def test_what_waits_is_answered_together_as_it_would_be_alone(
    folders: Path, batches: Batches
) -> None:
    searcher = open_searcher(folders / "both")
    gate = Gate(searcher)
    _, *found = asyncio.run(asked(batches, gate, TEXTS))
    assert gate.sizes == [1, 4, 2]
    for text, one in zip(TEXTS, found, strict=True):
        (alone,) = searcher.search([Query("q", text)], 3)
        assert isinstance(one, Found)
        assert one.shown.document_ids == alone.document_ids
        assert one.shown.scores == pytest.approx(alone.scores, rel=1e-4)
        assert one.seconds.keys() == {"wait", "encode", "search", "rerank", "snippets"}


def test_each_is_answered_to_its_own_depth(folders: Path, batches: Batches) -> None:
    searcher = open_searcher(folders / "both")
    _, *found = asyncio.run(asked(batches, Gate(searcher), ["river bank"] * 4, depths=(1, 3)))
    (alone,) = searcher.search([Query("q", "river bank")], 3)
    assert len(alone.document_ids) > 1
    for depth, one in zip((1, 3, 1, 3), found, strict=True):
        assert isinstance(one, Found)
        assert one.shown.document_ids == alone.document_ids[:depth]


def test_each_is_answered_by_its_own_filter(folders: Path, batches: Batches) -> None:
    gate = Gate(open_searcher(folders / "both", use="dense"))
    filters = [None, parse({"lang": "ja"})]
    _, *found = asyncio.run(asked(batches, gate, ["river bank"] * 4, (6,), filters))
    assert gate.sizes == [1, 2, 2]
    assert [len(one.shown) for one in found if isinstance(one, Found)] == [6, 1, 6, 1]


def test_a_query_that_fails_fails_alone(folders: Path, batches: Batches) -> None:
    gate = Gate(open_searcher(folders / "both"), refused="boats")
    found = asyncio.run(asked(batches, gate, ["snow", "boats", "mill"]))
    assert [isinstance(one, Found) for one in found] == [True, True, False, True]
    assert str(found[2]) == "boats"


def test_vectors_of_the_last_queries_are_kept(folders: Path) -> None:
    encoder = open_searcher(folders / "both").encoders["dense"]
    calls: list[list[str]] = []

    def counted(texts: Sequence[str]) -> object:
        calls.append(list(texts))
        return encoder.encode_queries(texts)

    kept = QueryVectors(counted, 2)
    expected = encoder.encode_queries(["snow", "mill", "snow"])
    given = kept.of(["snow", "mill", "snow"])
    assert given.vectors == pytest.approx(expected.vectors, abs=1e-5)
    for part in ("vectors", "pieces"):
        found, wanted = (getattr(both.tokens, part) for both in (given, expected))
        assert found.starts.tolist() == wanted.starts.tolist()
        assert found.values == pytest.approx(wanted.values, abs=1e-5)
    kept.of(["mill", "boats"])
    kept.of(["snow"])  # the one that was asked for longest ago
    kept.of(["boats"])
    assert calls == [["snow", "mill"], ["boats"], ["snow"]]
