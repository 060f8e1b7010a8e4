"""Sizes of a sparse index: each row is the index that `isthmus index` would have built."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from isthmus.collections import read_judgements, read_queries
from isthmus.errors import InputError, MismatchError, OutputError, SettingsError
from isthmus.evaluation import per_query
from isthmus.indexes.verification import read_manifest
from isthmus.records import Run
from isthmus.retrieval.searcher import open_searcher
from isthmus.retrieval.verbs.index import IndexSettings, index
from isthmus.retrieval.verbs.sparsify import SparsifySettings, sparsify


@pytest.fixture
def medline(shared_data: Path, tmp_path: Path) -> dict[str, str]:
    folder = shared_data / "collections" / "medline"
    return {
        "corpus": f"beir:{folder}",
        "queries": str(next(folder.glob("queries.jsonl*"))),
        "qrels": str(next((folder / "qrels").iterdir())),
    }


def test_rows_are_what_the_indexes_measure(
    medline: dict[str, str], tmp_path: Path, sparse_encoder: Any
) -> None:
    settings = SparsifySettings(terms=[16, 4], measure="nDCG@10", keep=True)
    found = sparsify("model", **medline, output=tmp_path / "curve", settings=settings)
    assert [size.terms for size in found.sizes] == [4, 16, None]
    judgements = read_judgements(Path(medline["qrels"]))
    queries = [q for q in read_queries(medline["queries"]) if q.id in judgements]
    for size in found.sizes:
        inverted = IndexSettings.parse({"inverted": {"terms": size.terms}}, "test")
        folder = index(medline["corpus"], tmp_path / str(size.terms), "model", settings=inverted)
        manifest = read_manifest(folder)
        assert manifest.layout is not None
        assert size.weights == manifest.layout.postings / manifest.documents
        assert size.accounted == 3 * size.weights
        run = Run("r", {r.query_id: r for r in open_searcher(folder).search(queries, 10)})
        (values,) = per_query(run, judgements, ["nDCG@10"]).values()
        assert size.value == pytest.approx(fmean(values.values()))
        kept = tmp_path / "curve" / "indexes" / ("all" if size.terms is None else str(size.terms))
        stored = [file for file in kept.glob("*.npy") if file.name != "order.npy"]
        assert size.stored == sum(file.stat().st_size for file in stored)
        assert size.rate > 0
    values = [size.value for size in found.sizes]
    assert values[0] < values[-1]  # real texts have more to say than four words
    assert found.sizes[0].stored < found.sizes[-1].stored


def files(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


@pytest.fixture
def small(corpus: str, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "queries.tsv").write_text("q1\triver bank\nq2\tsnow\nunjudged\tboat\n")
    (tmp_path / "qrels.tsv").write_text("q1 0 d0 1\nq2 0 d4 1\n")
    return {
        "corpus": corpus,
        "queries": str(tmp_path / "queries.tsv"),
        "qrels": str(tmp_path / "qrels.tsv"),
    }


def test_files_and_the_same_job_again(
    small: dict[str, str], tmp_path: Path, sparse_encoder: Any
) -> None:
    settings = SparsifySettings(terms=[1, 2])
    first = sparsify("model", **small, output=tmp_path / "curve", settings=settings)
    written = {"isthmus.json", "table.md", "table.tex", "curve.tsv", "curve.svg"}
    assert files(tmp_path / "curve") == written
    lines = (tmp_path / "curve" / "curve.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["terms", "1", "2", "all"]
    assert sparse_encoder.encoded == 5  # once, whatever the number of indexes
    again = sparsify("model", **small, output=tmp_path / "curve", settings=settings)
    assert again.sizes == first.sizes
    assert sparse_encoder.encoded == 5
    with pytest.raises(OutputError, match=r"differs in settings\.terms"):
        sparsify("model", **small, output=tmp_path / "curve", settings=SparsifySettings(terms=[3]))


def test_what_cannot_be_compared(
    small: dict[str, str], tmp_path: Path, sparse_encoder: Any
) -> None:
    for values in ({"terms": []}, {"terms": [0]}, {"inverted": {"terms": 3}}):
        settings = SparsifySettings.parse(values, "test")
        with pytest.raises(SettingsError, match="cannot be used"):
            sparsify("model", **small, output=tmp_path / "curve", settings=settings)
    Path(small["qrels"]).write_text("other 0 d0 1\n")
    with pytest.raises(InputError, match="none of the queries is judged"):
        sparsify("model", **small, output=tmp_path / "curve")
    sparse_encoder.kind = "dense"
    with pytest.raises(MismatchError, match="is a dense encoder"):
        sparsify("model", **small, output=tmp_path / "curve")
    assert not (tmp_path / "curve").exists()
