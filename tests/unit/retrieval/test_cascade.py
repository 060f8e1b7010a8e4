"""Candidates of one index scored by others: brute force over the candidates."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.collections import Problems
from isthmus.errors import InputError
from isthmus.records import Query, Ranking
from isthmus.retrieval.hybrid import CascadeSearcher, HybridSearcher
from isthmus.retrieval.searcher import Searcher
from isthmus.retrieval.verbs.index import index
from isthmus.retrieval.verbs.search import SearchSettings, search

QUERIES = [Query("q1", "river bank"), Query("q2", "snow on the river"), Query("q3", "loan")]


def test_scores_of_candidates_are_those_of_a_search(bm25: Searcher, dense: Searcher) -> None:
    everything = [Ranking.sorted(q.id, {f"d{row}": 1.0 for row in range(5)}) for q in QUERIES]
    for searcher in (bm25, dense):
        expected = searcher.search(QUERIES, 5)
        scored = searcher.score(QUERIES, everything)
        for whole, found, two in zip(
            scored, expected, searcher.score(QUERIES, [r.top(2) for r in everything]), strict=True
        ):
            # What a search leaves out shares no term, and scores 0.
            assert dict(whole) == {f"d{row}": 0.0 for row in range(5)} | dict(found)
            assert dict(two) == {name: dict(whole)[name] for name in ("d0", "d1")}
            assert whole == Ranking.sorted(whole.query_id, dict(whole))


def test_pipeline_is_brute_force_over_the_candidates(bm25: Searcher, dense: Searcher) -> None:
    pipeline = CascadeSearcher([bm25, dense], "raw_sum", [0.25, 0.75], candidates=2)
    exact = {r.query_id: dict(r) for r in dense.search(QUERIES, 5)}
    for found, candidates in zip(pipeline.search(QUERIES, 2), bm25.search(QUERIES, 2), strict=True):
        total = {d: 0.25 * s + 0.75 * exact[found.query_id][d] for d, s in candidates}
        assert dict(found) == pytest.approx(total)
        assert found == Ranking.sorted(found.query_id, dict(found))


def test_only_the_first_index_is_searched(
    bm25: Searcher, dense: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = HybridSearcher([bm25, dense]).search(QUERIES[:1])[0]
    monkeypatch.setattr(dense, "search", None)
    (found,) = CascadeSearcher([bm25, dense]).search(QUERIES[:1])
    assert set(found.document_ids) == set(bm25.search(QUERIES[:1])[0].document_ids)
    assert set(found.document_ids) < set(both.document_ids)


def test_query_that_the_first_cannot_read(bm25: Searcher, dense: Searcher) -> None:
    query = Query("q", "of the")
    with pytest.raises(InputError, match="query without tokens"):
        CascadeSearcher([bm25, dense]).search([query])
    problems = Problems("skip")
    assert CascadeSearcher([bm25, dense]).search([query], problems=problems) == [Ranking("q")]
    assert problems.counts == {"query without tokens": 1}
    # The second finds nothing in it: the first decides alone.
    (found,) = CascadeSearcher([dense, bm25]).search([query])
    assert found.document_ids == dense.search([query])[0].document_ids


def test_settings_reach_the_pipeline(
    corpus: str, bm25: Searcher, tmp_path: Path, encoder: object
) -> None:
    both = index(corpus, tmp_path / "both", ["bm25", "model"])
    hits = search(both, "river bank", settings=SearchSettings(pipeline=True))
    assert {hit.id for hit in hits} == set(bm25.search(QUERIES[:1])[0].document_ids)
    assert len(hits) < 5  # which the other index would have found
