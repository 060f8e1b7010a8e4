"""Approximate search: measured, exact in what it scores, refused where it does not belong."""

from __future__ import annotations

import json
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.index_bytes import verify

from isthmus.config.output import writing
from isthmus.config.sealed_json import sealed
from isthmus.errors import InputError, MismatchError, MissingPackageError, OutputError
from isthmus.indexes.approximation import ApproximationSettings
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.dense.faiss_builder import build_faiss
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.manifest import Description
from isthmus.records import Document, Ranking

faiss = pytest.importorskip("faiss")

NAMES = [str(number) for number in range(20)]


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Clusters, as vectors of texts form them; the first 20 are asked."""
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((60, 16))
    chosen = centres[generator.integers(0, 60, 2000)]
    return (chosen + 0.4 * generator.standard_normal((2000, 16))).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path, vectors: np.ndarray, dense_description: Description) -> Path:
    description = dense_description.model_copy(update={"dimension": 16})
    with DenseBuilder(tmp_path / "index", description) as builder:
        builder.add([Document(f"d{row}", "") for row in range(len(vectors))], vectors)
        return builder.finish({})


@pytest.mark.parametrize("name", ["hnsw", "ivf"])
def test_recall_is_what_was_measured(folder: Path, vectors: np.ndarray, name: str) -> None:
    choice = {"effort": 64} if name == "hnsw" else {"lists": 16, "effort": 2}
    settings = ApproximationSettings.parse({"name": name, **choice}, "test")
    about = build_faiss(folder, settings, vectors[:20])
    exact = DenseIndex.open(folder).search(vectors[:20], 10, NAMES)
    found = DenseIndex.open(folder, name).search(vectors[:20], 10, NAMES)  # type: ignore[arg-type]
    shared = [
        len({*a.document_ids} & {*b.document_ids}) / 10 for a, b in zip(exact, found, strict=True)
    ]
    assert about.depths == [10, 1000]
    assert about.recall[0] == pytest.approx(np.mean(shared))
    assert about.recall[0] > 0.5
    assert f"finds {about.recall[0]:.1%} of the 10 nearest" in about.summary()
    assert f"{about.recall[1]:.1%} of the 1,000 nearest" in about.summary()
    everything = DenseIndex.open(folder).search(vectors[:20], len(vectors), NAMES)
    for whole, ranking in zip(everything, found, strict=True):
        scores = {document: dict(whole)[document] for document in ranking.document_ids}
        assert ranking == Ranking.sorted(ranking.query_id, scores)
    verify(folder)  # the index itself is as it was


def test_little_effort_misses_and_all_of_it_does_not(folder: Path, vectors: np.ndarray) -> None:
    values = {
        effort: build_faiss(
            folder, ApproximationSettings(name="ivf", lists=16, effort=effort), vectors[:20]
        ).recall[0]
        for effort in (1, 16)
    }
    assert values[1] < values[16]
    assert values[16] > 0.99


def test_the_same_is_not_built_again(folder: Path, vectors: np.ndarray) -> None:
    settings = ApproximationSettings()
    build_faiss(folder, settings, vectors[:20])
    before = (folder / "hnsw" / "vectors.faiss").stat().st_mtime_ns
    build_faiss(folder, settings, vectors[:20])
    assert (folder / "hnsw" / "vectors.faiss").stat().st_mtime_ns == before
    build_faiss(folder, ApproximationSettings(neighbours=4), vectors[:20])
    assert (folder / "hnsw" / "vectors.faiss").stat().st_mtime_ns > before


def test_deeper_than_its_effort(folder: Path, vectors: np.ndarray) -> None:
    build_faiss(folder, ApproximationSettings(effort=4), vectors[:20])
    (ranking,) = DenseIndex.open(folder, "hnsw").search(vectors[:1], 300, ["q"])
    assert len(ranking) == 300


def test_filters_are_exact(folder: Path, vectors: np.ndarray) -> None:
    build_faiss(folder, ApproximationSettings(), vectors[:20])
    among = [f"d{row}" for row in range(0, 2000, 97)]
    expected = DenseIndex.open(folder).search(vectors[:20], 5, NAMES, among=among)
    assert DenseIndex.open(folder, "hnsw").search(vectors[:20], 5, NAMES, among) == expected


def test_absent_or_of_other_vectors(
    folder: Path, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="has no ivf beside it") as caught:
        DenseIndex.open(folder, "ivf")
    assert "--set approximate.name=ivf" in caught.value.remedy
    build_faiss(folder, ApproximationSettings(), vectors[:20])
    file = folder / "hnsw" / "approximate.json"
    file.write_text(json.dumps(sealed(json.loads(file.read_text()) | {"made_of": "others"})))
    with pytest.raises(MismatchError, match="made of another index"):
        DenseIndex.open(folder, "hnsw")
    shutil.rmtree(folder / "hnsw")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingPackageError) as missing:
        build_faiss(folder, ApproximationSettings(), vectors[:20])
    assert missing.value.remedy == "pip install 'isthmus[ann]'"


def test_a_disk_that_fills_while_faiss_writes_is_said(folder: Path, vectors: np.ndarray) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with pytest.raises(OutputError, match="larger than is allowed") as caught:
            build_faiss(folder, ApproximationSettings(), vectors[:20])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.remedy.endswith("and run again")
    assert not (folder / "hnsw").exists()
    build_faiss(folder, ApproximationSettings(), vectors[:20])
    index = faiss.read_index(str(folder / "hnsw" / "vectors.faiss"))
    with pytest.raises(OutputError, match="no space left on the disk"), writing(folder):
        faiss.write_index(index, "/dev/full")
