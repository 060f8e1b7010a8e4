from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import ir_datasets
import pytest
from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericDoc, GenericQuery, TrecQrel

from isthmus.collections import (
    open_collection,
    open_corpus,
    open_judged,
    open_queries,
)
from isthmus.errors import InputError
from isthmus.records import Document, Query


class Documents(BaseDocs):  # type: ignore[misc]
    def docs_iter(self) -> Iterator[GenericDoc]:
        return iter([GenericDoc("d1", "one"), GenericDoc("d2", "two")])

    def docs_cls(self) -> type:
        return GenericDoc  # type: ignore[no-any-return]


class Dated(NamedTuple):
    doc_id: str
    text: str
    url: str
    year: int
    raw: bytes


class DatedDocuments(Documents):
    def docs_iter(self) -> Iterator[Dated]:
        return iter([Dated("d1", "one", "http://x", 2020, b"<p>")])


class Unreachable(Documents):
    def docs_iter(self) -> Iterator[GenericDoc]:
        raise RuntimeError("all download sources failed")


class Queries(BaseQueries):  # type: ignore[misc]
    def queries_iter(self) -> Iterator[GenericQuery]:
        return iter([GenericQuery("q1", "which")])

    def queries_cls(self) -> type:
        return GenericQuery  # type: ignore[no-any-return]


class Judged(BaseQrels):  # type: ignore[misc]
    def qrels_iter(self) -> Iterator[TrecQrel]:
        return iter([TrecQrel("q1", "d2", 2, "0")])

    def qrels_cls(self) -> type:
        return TrecQrel  # type: ignore[no-any-return]

    def qrels_defs(self) -> dict[int, str]:
        return {2: "relevant"}


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    for name, dataset in {
        "isthmus-tiny": Dataset(Documents()),
        "isthmus-tiny/test": Dataset(Documents(), Queries(), Judged()),
        "isthmus-tiny/unjudged": Dataset(Documents(), Queries()),
        "isthmus-dated": Dataset(DatedDocuments()),
        "isthmus-unreachable": Dataset(Unreachable()),
    }.items():
        if name not in list(ir_datasets.registry):
            ir_datasets.registry.register(name, dataset)


@pytest.mark.parametrize("name", ["isthmus-tiny", "isthmus-tiny/test"])
def test_one_split_or_their_parent(name: str) -> None:
    found = open_collection(f"irds:{name}")
    assert list(found.documents()) == [Document("d1", "one"), Document("d2", "two")]
    assert list(found.queries()) == [Query("q1", "which")]
    assert found.splits() == ["test"]
    assert found.judgements("test") == {"q1": {"d2": 2}}
    assert found.fingerprint() != open_corpus("irds:isthmus-unreachable").fingerprint()


def test_other_fields_are_metadata() -> None:
    (found,) = open_corpus("irds:isthmus-dated").documents()
    assert found == Document("d1", "one", metadata={"url": "http://x", "year": 2020})


def test_queries_without_judgements_can_be_searched_for() -> None:
    assert open_queries("irds:isthmus-tiny/unjudged") == [Query("q1", "which")]
    assert open_queries("irds:isthmus-tiny/test") == [Query("q1", "which")]
    with pytest.raises(InputError, match="no queries and judgements"):
        open_judged("irds:isthmus-tiny/unjudged")
