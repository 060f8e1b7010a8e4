"""Re-ranking: the best of any searcher in another's order, and what it cannot be done with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from isthmus.collections import Problems, read_run
from isthmus.config import resolve
from isthmus.errors import InputError
from isthmus.records import Document, Query
from isthmus.retrieval.index import index
from isthmus.retrieval.reranker import RerankingSearcher, RerankSettings
from isthmus.retrieval.search import SearchSettings, search, search_file
from isthmus.retrieval.searcher import open_searcher


@dataclass
class LengthScorer:
    """The shorter a document, the higher its score; long ones are below 0."""

    read: list[tuple[str, str]] = field(default_factory=list)

    def score(self, pairs: Sequence[tuple[str, Document]]) -> np.ndarray:
        self.read += [(query, document.id.partition("#")[0]) for query, document in pairs]
        return np.array([12 - len(document.text) for _, document in pairs], dtype=np.float32)


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> LengthScorer:
    """What every name of a re-ranker loads in these tests."""
    found = LengthScorer()
    monkeypatch.setattr("isthmus.encoders.load_reranker", lambda *_, **__: found)
    return found


QUERIES = [Query("q1", "bank river"), Query("q2", "snow bank"), Query("q3", "snow")]


def test_candidates_are_reordered_and_the_rest_follows(folder: Path) -> None:
    searcher, scorer = open_searcher(folder, "dense"), LengthScorer()
    before = searcher.search(QUERIES, depth=5)
    after = RerankingSearcher(searcher, scorer, candidates=3).search(QUERIES, depth=5)
    expected_reads = [
        (query.text, document)
        for query, ranking in zip(QUERIES, before, strict=True)
        for document in ranking.document_ids[:3]
    ]
    assert scorer.read == expected_reads
    assert any(list(one.document_ids[:3]) != sorted(one.document_ids[:3]) for one in before)
    for was, now in zip(before, after, strict=True):
        found = searcher.index.documents(was.document_ids)
        lengths = {document.id: len(document.text) for document in found}
        first = sorted(was.document_ids[:3], key=lambda name: (lengths[name], name))
        assert now.query_id == was.query_id
        assert now.document_ids == (*first, *was.document_ids[3:])
        assert now.scores[:3] == tuple(12.0 - lengths[name] for name in first)
        assert now.scores[2] > now.scores[3] > now.scores[4], "whatever the searcher's scores were"


def test_depth_and_candidates_are_independent(folder: Path) -> None:
    scorer = LengthScorer()
    reranking = RerankingSearcher(open_searcher(folder, "dense"), scorer)
    (found,) = reranking.search([Query("q", "bank")], depth=1)
    assert found.document_ids == ("d4",), "the shortest of all five, not of the first one"
    assert len(scorer.read) == 5
    assert [one.text for one in reranking.documents(["d4"])] == ["snow"]
    assert reranking.has_tokens("bank")
    assert not reranking.has_tokens("  ")


def test_queries_without_an_answer(corpus: str, tmp_path: Path) -> None:
    scorer = LengthScorer()
    reranking = RerankingSearcher(open_searcher(index(corpus, tmp_path / "bm25")), scorer)
    problems = Problems("skip")
    asked = [Query("none", "zebra"), Query("bad", "?"), Query("good", "snow")]
    none, bad, good = reranking.search(asked, 10, problems)
    assert (len(none), len(bad), good.document_ids) == (0, 0, ("d4",))
    assert problems.counts
    assert scorer.read == [("snow", "d4")]
    assert [len(ranking) for ranking in reranking.search(asked[:1])] == [0]
    with pytest.raises(InputError):
        reranking.search(asked)


def test_the_verb(folder: Path, scorer: LengthScorer, tmp_path: Path) -> None:
    values = resolve("search", None, {"rerank.model": "reranker"}, ["rerank.candidates=2"])
    settings = SearchSettings.parse(values, "test")
    assert settings.rerank == RerankSettings(model="reranker", candidates=2)
    hits = search(folder, "bank river", settings=settings)
    assert isinstance(hits, list)
    assert len(scorer.read) == 2
    assert hits[0].score == 12 - len("river bank")
    queries = tmp_path / "queries.jsonl"
    lines = [f'{{"_id": "{query.id}", "text": "{query.text}"}}' for query in QUERIES]
    queries.write_text("\n".join(lines))
    run = search_file(folder, queries, tmp_path / "out.trec", settings=settings)
    rankings = read_run(run).rankings
    assert [len(rankings[query.id]) for query in QUERIES] == [5] * len(QUERIES)
    assert len(scorer.read) == 2 + 2 * len(QUERIES)
