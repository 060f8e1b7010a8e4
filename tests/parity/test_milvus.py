"""A real Milvus, embedded: what goes in is found as our own indexes find it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from isthmus.errors import InputError, MismatchError, OutputError
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.inverted.index import InvertedIndex
from isthmus.records import Document, Ranking
from isthmus.retrieval.verbs.export import ExportSettings, export

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

from pymilvus import AnnSearchRequest, MilvusClient, RRFRanker

from isthmus.indexes.milvus import Milvus, field_rows

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def both(medline, tmp_path_factory) -> str:
    """One collection with the vectors of two indexes."""
    place = tmp_path_factory.mktemp("milvus") / "both.db"
    export(medline.folders["sparse"], place, medline.folders["dense"])
    return str(place)


@pytest.mark.parametrize("name", ["sparse", "dense"])
@pytest.mark.parametrize("depth", [1, 10, 1000])
def test_the_same_answers(medline, both: str, loads, name: str, depth: int) -> None:
    settings = ExportSettings(depth=depth)
    found = export(
        medline.folders[name],
        verify=both,
        queries=medline.query_file,
        output=None,
        settings=settings,
    )
    assert found.exact
    assert len(found.comparisons) == 30
    if name == "sparse":  # whole numbers, so that ties are seen and ordered as ours
        assert all(one.same_order for one in found.comparisons)
        assert {one.score_difference for one in found.comparisons} == {0.0}


def test_hybrid_is_reciprocal_rank_of_our_own(medline, tmp_path: Path) -> None:
    place, ids, depth, candidates = str(tmp_path / "both.db"), medline.ids, 10, 100
    export(medline.folders["dense"], place, medline.folders["float"])
    vectors = {"sparse": medline.vectors("float"), "dense": medline.vectors("dense")}
    requests = [
        AnnSearchRequest(
            list(field_rows(field, rows, beyond=1)), field, {"metric_type": "IP"}, candidates
        )
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
        InvertedIndex.open(medline.folders["float"]).search(vectors["sparse"], candidates, ids),
        DenseIndex.open(medline.folders["dense"]).search(vectors["dense"], candidates, ids),
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


def test_another_encoder_is_refused(medline, both: str, loads) -> None:
    with pytest.raises(InputError, match="Milvus refuses"):
        Milvus(both, "another").encoders()
    with pytest.raises(MismatchError, match="vectors of the encoder sparse-1, the index those"):
        export(medline.folders["heavy"], verify=both, queries=medline.query_file)


def test_a_name_that_is_taken(medline, both: str) -> None:
    with pytest.raises(OutputError, match="a collection 'isthmus' already"):
        export(medline.folders["dense"], both)


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
        export(medline.folders["dense"], place)
    assert Milvus(place, "isthmus").client.list_collections() == ["isthmus_building"]
    monkeypatch.undo()
    export(medline.folders["dense"], place)
    collection = Milvus(place, "isthmus")
    assert collection.client.list_collections() == ["isthmus"]
    assert collection.client.get_collection_stats("isthmus")["row_count"] == 1033


def test_add_replace_delete_reopen(tmp_path: Path) -> None:
    place = str(tmp_path / "own.db")
    documents = [Document(f"d{n}", "text", "title") for n in range(4)]
    dense = np.float32([[1, 0], [0, 1], [1, 1], [-1, 0]])
    sparse = scipy.sparse.csr_matrix(np.float32([[3, 0, 0], [0, 2, 0], [0, 0, 0], [1, 2, 0]]))
    collection = Milvus(place, "mine")
    collection.create({"dense": 2, "sparse": 3}, {"dense": "e1", "sparse": "e2"})
    collection.add(documents, {"dense": dense, "sparse": sparse})
    asked = np.float32([[1, 0], [0, 2]])
    first, second = collection.search("dense", asked, 3, ["q1", "q2"])
    assert first == Ranking("q1", ("d0", "d2", "d1"), (1.0, 1.0, 0.0))
    assert second == Ranking("q2", ("d1", "d2", "d0"), (2.0, 2.0, 0.0))
    weights = scipy.sparse.csr_matrix(np.int64([[2, 1, 0], [0, 0, 0], [0, 0, 5]]))
    found = collection.search("sparse", weights, 3, ["q1", "q2", "q3"])
    assert found[0] == Ranking("q1", ("d0", "d3", "d1"), (6.0, 4.0, 2.0))
    assert found[1:] == [Ranking("q2"), Ranking("q3")]
    collection.add(documents[1:2], {"dense": dense[:1] * 5, "sparse": sparse[:1] * 5})
    collection.delete(["d0", "nobody"])
    collection.client.release_collection("mine")  # as the end of a process does
    collection.client.close()
    again = Milvus(place, "mine")
    assert again.encoders() == {"dense": "e1", "sparse": "e2"}
    (found,) = again.search("dense", asked[:1], 9, ["q1"])
    assert found == Ranking("q1", ("d1", "d2", "d3"), (5.0, 1.0, -1.0))
    (found,) = again.search("sparse", weights[:1], 9, ["q1"])
    assert found == Ranking("q1", ("d1", "d3"), (30.0, 4.0))


def test_ties_at_the_cut_go_by_id(tmp_path: Path) -> None:
    """A hundred equal scores, of which Milvus would return any."""
    collection = Milvus(str(tmp_path / "ties.db"), "ties")
    collection.create({"sparse": 2}, {"sparse": "e"})
    names = [f"{(37 * n) % 100:02d}" for n in range(100)]
    rows = scipy.sparse.csr_matrix(np.ones((100, 1), dtype=np.float32), shape=(100, 2))
    collection.add([Document(name, "") for name in names], {"sparse": rows})
    (found,) = collection.search("sparse", rows[:1], 3, ["q"])
    assert found == Ranking("q", ("00", "01", "02"), (1.0, 1.0, 1.0))


def test_texts_too_long_for_milvus_are_cut(tmp_path: Path) -> None:
    collection = Milvus(str(tmp_path / "long.db"), "long")
    collection.create({"dense": 1}, {"dense": "e"})
    collection.add([Document("d", "é" * 40_000)], {"dense": np.float32([[1]])})
    (row,) = collection.client.get("long", ids=["d"], output_fields=["text"])
    assert row["text"] == "é" * 32_767  # 65,534 bytes


@pytest.mark.parametrize("place", ["no-ending", "http://127.0.0.1:9"])
def test_places_that_are_none(medline, tmp_path: Path, place: str) -> None:
    where = place if place.startswith("http") else str(tmp_path / place)
    with pytest.raises(InputError, match="Milvus refuses") as caught:
        export(medline.folders["dense"], where)
    assert "19530" in caught.value.fix
