"""Token vectors in a search: what they are compared with, fused, alone, and not stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.records import Query, Ranking
from isthmus.retrieval.fusion import fuse, fusions
from isthmus.retrieval.index import index
from isthmus.retrieval.searcher import Searcher, open_searcher

QUERY = [Query("q", "boat on a river")]


@pytest.fixture
def folder(tmp_path: Path, encoder: object) -> Path:
    """Documents of one passage and of several."""
    words = ("river", "bank", "boat", "snow", "loan", "glacier", "on", "a")
    texts = [" ".join(words[(row * step) % 8] for step in range(1, 5)) for row in range(40)]
    filler = "some loans. " * 12 + "glaciers and snow. " * 9
    texts[3::4] = [filler + one for one in texts[3::4]]
    file = tmp_path / "many.jsonl"
    lines = [{"_id": f"d{row}", "text": text, "year": row} for row, text in enumerate(texts)]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return index(str(file), tmp_path / "many", "model")


def alone(searcher: Searcher, by: Any = "document") -> dict[str, float]:
    """The scores of all by the field of tokens, from the index itself."""
    found = searcher.index
    vectors = searcher.encoders["tokens"].encode_queries(["boat on a river"])
    (ranking,) = found.search("tokens", vectors, 1000, ["q"], by=by)
    return dict(ranking)


@pytest.mark.parametrize("by", ["document", "passage"])
@pytest.mark.parametrize("count", [3, 30])
def test_the_default_is_the_fusion_of_three_rankings(folder: Path, by: Any, count: int) -> None:
    """Of tokens, those of the first documents of the others fused."""
    searcher = open_searcher(folder, by=by, fusion={"compared": count})
    names = ["bm25", "dense", "tokens"] if by == "document" else ["dense", "tokens"]
    assert list(searcher.fields) == names
    others = [open_searcher(folder, name, by=by).search(QUERY, 1000)[0] for name in names[:-1]]
    vote = fusions.load("weighted_sum")
    first = fuse(others, [1.0] * len(others), vote, count).document_ids
    every = alone(searcher, by)
    tokens = Ranking.sorted("q", {name: every[name] for name in first})
    expected = fuse([*others, tokens], [1.0] * len(names), vote, 12)
    assert searcher.search(QUERY, 12) == [expected]
    assert [ranking.top(12) for ranking in searcher.components(QUERY)["tokens"]] == [tokens.top(12)]


def test_tokens_alone_are_compared_with_all_or_with_what_others_find(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher = open_searcher(folder, "tokens")
    expected = Ranking.sorted("q", alone(searcher))
    assert len(expected) == 40
    assert searcher.search(QUERY, 40) == [expected]
    monkeypatch.setattr("isthmus.retrieval.searcher.ALL_COMPARED", 10)
    many = open_searcher(folder, "tokens")
    assert many.finding == ("bm25", "dense")
    assert many.search(QUERY, 40) == [expected], "as many as are asked for"
    few = many.search(QUERY, 5)[0]
    assert len(few) == 5
    assert all(score == dict(expected)[name] for name, score in few)


def test_what_is_not_stored_is_computed_and_the_same(
    folder: Path, tmp_path: Path, encoder: Any
) -> None:
    computed = index(
        str(tmp_path / "many.jsonl"),
        tmp_path / "computed",
        "model",
        settings={"tokens": {"stored": False}},
    )
    for by in ("document", "passage"):
        for use in (None, "tokens"):
            one, two = (open_searcher(each, use, by=by) for each in (folder, computed))  # type: ignore[arg-type]
            depth = (
                100 if use else 10
            )  # alone, what is not stored is compared with what others find
            assert one.search(QUERY, depth) == two.search(QUERY, depth)
    ids = ["d3", "d7", "d11", "d15", "d12"]
    one, two = (open_searcher(each).documents(ids, QUERY[0].text) for each in (folder, computed))
    dense = open_searcher(folder, "dense").documents(ids, QUERY[0].text)
    assert [each.id.partition("#")[0] for each in one] == ids
    assert any(not each.id.endswith("#1") for each in dense)
    assert two == dense, "the passage that can be told without reading all of them"
