"""A real Milvus, embedded: what goes in is found as our own indexes find it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from isthmus.errors import InputError, OutputError
from isthmus.indexes.index import Index
from isthmus.records import Document, Ranking
from isthmus.retrieval.export import export

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

from pymilvus import AnnSearchRequest, MilvusClient, RRFRanker

from isthmus.indexes.milvus import Milvus

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def both(medline, tmp_path_factory) -> str:
    """One collection with the vectors of two retrievers."""
    place = tmp_path_factory.mktemp("milvus") / "both.db"
    export(str(medline.folders["sparse and dense"]), place)
    return str(place)


def as_sent(vectors) -> list:
    """Queries as Milvus takes them; those without terms get one that no document has."""
    if not scipy.sparse.issparse(vectors):
        return list(vectors)
    rows = (vectors[number] for number in range(vectors.shape[0]))
    beyond = {vectors.shape[1] + 1: 1.0}
    found = (dict(zip(one.indices.tolist(), one.data.tolist(), strict=True)) for one in rows)
    return [weights or beyond for weights in found]


def asked(place: str, field: str, vectors, ids, depth: int) -> list[Ranking]:
    client = MilvusClient(place)
    client.load_collection("isthmus")
    how = {"anns_field": field, "limit": depth, "search_params": {"metric_type": "IP"}}
    answers = client.search("isthmus", data=as_sent(vectors), output_fields=["id"], **how)
    return [
        Ranking.sorted(one, {hit["id"]: hit["distance"] for hit in hits})
        for one, hits in zip(ids, answers, strict=True)
    ]


@pytest.mark.parametrize("depth", [10, 1000])
def test_the_same_answers(medline, both: str, depth: int) -> None:
    vectors = medline.vectors("dense")
    ours = Index.open(medline.folders["dense"]).search("dense", vectors, depth, medline.ids)
    for mine, theirs in zip(ours, asked(both, "dense", vectors, medline.ids, depth), strict=True):
        np.testing.assert_allclose(mine.scores, theirs.scores, rtol=1e-5, atol=1e-3)
    # Documents are sent as the index searches them: whole numbers, 100 times the weight.
    weights = medline.vectors("sparse")
    weights.data = np.floor(weights.data * 100)
    ours = Index.open(medline.folders["sparse"]).search(
        "sparse", medline.vectors("sparse"), depth, medline.ids
    )
    for mine, theirs in zip(ours, asked(both, "sparse", weights, medline.ids, depth), strict=True):
        count = min(len(mine), len(theirs))
        assert mine.scores[:count] == theirs.scores[:count]


def test_hybrid_is_reciprocal_rank_of_our_own(medline, tmp_path: Path) -> None:
    place, ids, depth, candidates = str(tmp_path / "both.db"), medline.ids, 10, 100
    export(str(medline.folders["float and dense"]), place)
    vectors = {"sparse": medline.vectors("float"), "dense": medline.vectors("dense")}
    requests = [
        AnnSearchRequest(as_sent(rows), field, {"metric_type": "IP"}, candidates)
        for field, rows in vectors.items()
    ]
    answers = MilvusClient(place).hybrid_search(
        "isthmus", requests, RRFRanker(60), limit=depth, output_fields=["id"]
    )
    found = [
        Ranking.sorted(one, {hit["id"]: hit["distance"] for hit in hits})
        for one, hits in zip(ids, answers, strict=True)
    ]
    ours = [
        Index.open(medline.folders["float"]).search("sparse", vectors["sparse"], candidates, ids),
        Index.open(medline.folders["dense"]).search("dense", vectors["dense"], candidates, ids),
    ]
    compared = 0
    for fused, *rankings in zip(found, *ours, strict=True):
        if any(np.isclose(r.scores[1:], r.scores[:-1], rtol=1e-6).any() for r in rankings):
            continue  # the ranks of equal scores are chance
        compared += 1
        votes: dict[str, float] = {}
        for ranking in rankings:
            for rank, document_id in enumerate(ranking.document_ids, start=1):
                votes[document_id] = votes.get(document_id, 0) + 1 / (60 + rank)
        expected = Ranking.sorted(fused.query_id, votes, depth)
        np.testing.assert_allclose(fused.scores, expected.scores, rtol=1e-5)
        for document_id, score in fused:
            assert votes[document_id] == pytest.approx(score, rel=1e-5)
    assert compared >= 10


def test_a_name_that_is_taken(medline, both: str) -> None:
    with pytest.raises(OutputError, match="a collection 'isthmus' already"):
        export(str(medline.folders["dense"]), both)


def test_what_an_interrupted_export_left_is_not_there(
    medline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads
) -> None:
    place = str(tmp_path / "part.db")
    plain, added = Milvus.add, []

    def interrupted(self, documents, vectors) -> None:
        if added:
            raise KeyboardInterrupt
        added.append(len(documents))
        plain(self, documents[:100], {field: rows[:100] for field, rows in vectors.items()})
        raise KeyboardInterrupt

    monkeypatch.setattr(Milvus, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(str(medline.folders["dense"]), place)
    assert Milvus(place, "isthmus").client.list_collections() == ["isthmus_building"]
    monkeypatch.undo()
    export(str(medline.folders["dense"]), place)
    collection = Milvus(place, "isthmus")
    assert collection.client.list_collections() == ["isthmus"]
    assert collection.client.get_collection_stats("isthmus")["row_count"] == 1033


def test_texts_too_long_for_milvus_are_cut(tmp_path: Path) -> None:
    collection = Milvus(str(tmp_path / "long.db"), "long")
    collection.create({"dense": 1}, {"dense": "e"})
    collection.add([Document("d", "é" * 40_000)], {"dense": np.float32([[1]])})
    (row,) = collection.client.get("long", ids=["d"], output_fields=["text"])
    assert row["text"] == "é" * 32_767  # 65,534 bytes


def test_a_place_that_is_none(medline) -> None:
    with pytest.raises(InputError, match="Milvus refuses") as caught:
        export(str(medline.folders["dense"]), "http://127.0.0.1:9")
    assert "19530" in caught.value.fix
