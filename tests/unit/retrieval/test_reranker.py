"""Re-ranking: the best of any searcher in another's order, and what it cannot be done with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from isthmus.collections import Problems, read_run
from isthmus.config import resolve
from isthmus.errors import InputError, MismatchError
from isthmus.records import Document, Query
from isthmus.retrieval.hybrid import HybridSearcher
from isthmus.retrieval.reranker import RerankingSearcher, RerankSettings
from isthmus.retrieval.searcher import open_searcher
from isthmus.retrieval.verbs.index import IndexSettings, index
from isthmus.retrieval.verbs.search import SearchSettings, search, search_file


@dataclass
class LengthScorer:
    """The shorter a document, the higher its score; long ones are below 0."""

    read: list[tuple[str, str]] = field(default_factory=list)

    def score(self, pairs: Sequence[tuple[str, Document]]) -> np.ndarray:
        self.read += [(query, document.id) for query, document in pairs]
        return np.array([12 - len(document.text) for _, document in pairs], dtype=np.float32)


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> LengthScorer:
    """What every name of a re-ranker loads in these tests."""
    found = LengthScorer()
    monkeypatch.setattr("isthmus.encoders.load_reranker", lambda *_, **__: found)
    return found


@pytest.fixture
def dense(corpus: str, tmp_path: Path, encoder: object) -> Path:
    return index(corpus, tmp_path / "dense", "model")


QUERIES = [Query("q1", "bank river"), Query("q2", "snow bank"), Query("q3", "snow")]


def test_candidates_are_reordered_and_the_rest_follows(dense: Path) -> None:
    searcher, scorer = open_searcher(dense), LengthScorer()
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
        lengths = {d.id: len(d.text) for d in searcher.documents(was.document_ids)}
        first = sorted(was.document_ids[:3], key=lambda name: (lengths[name], name))
        assert now.query_id == was.query_id
        assert now.document_ids == (*first, *was.document_ids[3:])
        assert now.scores[:3] == tuple(12.0 - lengths[name] for name in first)
        assert now.scores[2] > now.scores[3] > now.scores[4], "whatever the searcher's scores were"


def test_depth_and_candidates_are_independent(dense: Path) -> None:
    scorer = LengthScorer()
    reranking = RerankingSearcher(open_searcher(dense), scorer, candidates=100)
    (found,) = reranking.search([Query("q", "bank")], depth=1)
    assert found.document_ids == ("d4",), "the shortest of all five, not of the first one"
    assert len(scorer.read) == 5
    assert reranking.documents(["d4"]) == [Document("d4", "snow", "Title4")]
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


def test_a_hybrid_and_a_re_ranking_go_together(corpus: str, dense: Path, tmp_path: Path) -> None:
    bm25 = open_searcher(index(corpus, tmp_path / "bm25"))
    hybrid = HybridSearcher([open_searcher(dense), bm25])
    (found,) = RerankingSearcher(hybrid, LengthScorer()).search(QUERIES[:1])
    assert found.document_ids[0] == "d4"
    (again,) = HybridSearcher([RerankingSearcher(bm25, LengthScorer()), bm25]).search(QUERIES[:1])
    assert set(again.document_ids) == {"d0", "d1", "d2"}


def test_an_index_without_texts(
    corpus: str, dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = index(corpus, tmp_path / "bare", settings=IndexSettings(texts=False))

    def load(name: str) -> None:
        raise AssertionError("no weights need to be read to know this")

    monkeypatch.setattr("isthmus.encoders.load_reranker", load)
    settings = SearchSettings(rerank=RerankSettings(model="reranker"))
    with pytest.raises(MismatchError) as caught:
        search(bare, "snow", settings=settings)
    assert "keeps no texts" in caught.value.what
    assert caught.value.fix == "build it again without --set texts=false"
    # Of two indexes, one with texts is enough.
    hybrid = HybridSearcher([open_searcher(bare), open_searcher(dense)])
    assert hybrid.documents(["d4"])[0].text == "snow"
    scorer = LengthScorer()
    assert RerankingSearcher(hybrid, scorer).search([Query("q", "snow")])[0].scores[0] == 8.0


def test_the_verb(dense: Path, corpus: str, scorer: LengthScorer, tmp_path: Path) -> None:
    values = resolve("search", None, {"rerank.model": "reranker"}, ["rerank.candidates=2"])
    settings = SearchSettings.parse(values, "test")
    assert settings.rerank == RerankSettings(model="reranker", candidates=2)
    hits = search(dense, "bank river", settings=settings)
    assert isinstance(hits, list)
    assert len(scorer.read) == 2
    assert hits[0].score == 12 - len("river bank")
    queries = tmp_path / "queries.jsonl"
    lines = [f'{{"_id": "{query.id}", "text": "{query.text}"}}' for query in QUERIES]
    queries.write_text("\n".join(lines))
    both = index(corpus, tmp_path / "both", ["bm25", "model"])
    run = search_file(both, queries, tmp_path / "out.trec", settings=settings)
    rankings = read_run(run).rankings
    assert [len(rankings[query.id]) for query in QUERIES] == [5] * len(QUERIES)
    assert len(scorer.read) == 2 + 2 * len(QUERIES)
