"""Seismic beside an inverted index: what it finds, what it refuses, what it leaves alone."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from isthmus.errors import InputError, MismatchError, MissingPackageError
from isthmus.indexes.approximation import ApproximationSettings
from isthmus.indexes.inverted.builder import InvertedBuilder
from isthmus.indexes.inverted.index import InvertedIndex
from isthmus.indexes.inverted.seismic_approximation import SeismicIndex, build_seismic
from isthmus.indexes.manifest import CorpusOrigin, Description, EncoderOrigin, InvertedSettings
from isthmus.records import Document

pytest.importorskip("seismic", reason="the extra [ann] is not installed")
ROWS, TERMS = 600, 80
USUAL = ApproximationSettings(name="seismic")
EAGER = ApproximationSettings(name="seismic", query_terms=TERMS, heap_factor=0.5)


def vectors(seed: int, rows: int = ROWS) -> scipy.sparse.csr_matrix:
    """Some rows are empty, and keep their places."""
    generator = np.random.default_rng(seed)
    weights = generator.gamma(2, 0.4, (rows, TERMS)) * (generator.random((rows, TERMS)) < 0.15)
    weights[::50] = 0
    return scipy.sparse.csr_matrix(weights.astype(np.float32))


def build(folder: Path, seed: int = 0, weights: scipy.sparse.csr_matrix | None = None) -> Path:
    weights = vectors(seed) if weights is None else weights
    description = Description(
        kind="inverted",
        corpus=CorpusOrigin(spec="c", fingerprint="c"),
        titles=False,
        encoder=EncoderOrigin(name="e", fingerprint="e"),
        dimension=weights.shape[1],
        inverted=InvertedSettings(),
    )
    with InvertedBuilder(folder, description) as builder:
        builder.add([Document(f"{row * 7 % ROWS:03}", "") for row in range(ROWS)], weights)
        return builder.finish({})


def test_an_eager_one_answers_as_the_exact_index_does(tmp_path: Path) -> None:
    folder = build(tmp_path / "index")
    about = build_seismic(folder, EAGER)
    queries, names = vectors(1, 20), [str(number) for number in range(20)]
    found = SeismicIndex.open(folder).search(queries, 10, names)
    expected = InvertedIndex.open(folder).search(queries, 10, names)
    assert not found[0].document_ids, "a query without terms has no answer"
    shared = [
        len({*f.document_ids} & {*e.document_ids}) for f, e in zip(found, expected, strict=True)
    ]
    assert sum(shared) >= 0.97 * sum(len(ranking.document_ids) for ranking in expected)
    scores = {e.query_id: dict(e) for e in InvertedIndex.open(folder).search(queries, ROWS, names)}
    for ranking in found:
        assert dict(ranking) == {i: scores[ranking.query_id][i] for i in ranking.document_ids}
    assert min(about.recall) > 0.95
    assert "of the 10 nearest documents," in about.summary()


def test_a_choice_among_documents_is_exact(tmp_path: Path) -> None:
    folder = build(tmp_path / "index")
    build_seismic(folder, ApproximationSettings(name="seismic", postings=1, query_terms=1))
    queries, among = vectors(1, 3), {"001", "002", "nobody"}
    found = SeismicIndex.open(folder).search(queries, 5, ["a", "b", "c"], among)
    assert found == InvertedIndex.open(folder).search(queries, 5, ["a", "b", "c"], among)


def test_it_is_measured_and_not_built_twice(tmp_path: Path) -> None:
    folder = build(tmp_path / "index")
    lazy = build_seismic(
        folder,
        ApproximationSettings(name="seismic", postings=40, query_terms=1),
        vectors(1, 20)[1:],
    )
    assert lazy.recall[0] < 0.9, "measured against the exact answers"
    written = (folder / "seismic" / "lists").stat().st_mtime_ns
    assert build_seismic(folder, lazy.settings) == lazy
    assert (folder / "seismic" / "lists").stat().st_mtime_ns == written
    assert build_seismic(folder, EAGER).recall[0] > lazy.recall[0]
    assert sorted(file.name for file in (folder / "seismic").iterdir()) == [
        "approximate.json",
        "lists",
    ]


def test_one_of_other_weights_is_refused(tmp_path: Path) -> None:
    one, other = build(tmp_path / "one"), build(tmp_path / "other", seed=9)
    build_seismic(other, USUAL)
    (other / "seismic").rename(one / "seismic")
    with pytest.raises(MismatchError, match="made of another index"):
        SeismicIndex.open(one)
    build_seismic(one, USUAL)  # and not taken for the one that is wanted
    assert len(SeismicIndex.open(one)) == ROWS


def test_terms_that_no_document_has(tmp_path: Path) -> None:
    """The highest ones among them are beyond what Seismic has heard of."""
    folder = tmp_path / "index"
    weights = vectors(0).toarray()
    weights[:, TERMS - 5 :] = 0
    build(folder, weights=scipy.sparse.csr_matrix(weights))
    build_seismic(folder, EAGER)
    query = np.zeros((1, TERMS), dtype=np.float32)
    query[0, [3, 10, TERMS - 1]] = 1.5
    asked = scipy.sparse.csr_matrix(query)
    (expected,) = InvertedIndex.open(folder).search(asked, 10, ["q"])
    assert SeismicIndex.open(folder).search(asked, 10, ["q"]) == [expected]
    only = scipy.sparse.csr_matrix(query * (np.arange(TERMS) == TERMS - 1))
    assert not SeismicIndex.open(folder).search(only, 10, ["q"])[0].document_ids


def test_a_large_vocabulary(tmp_path: Path) -> None:
    """Terms that 16 bits would take for others."""
    weights = vectors(0)
    far = scipy.sparse.csr_matrix(
        (weights.data, weights.indices * 1000, weights.indptr), (ROWS, 1000 * TERMS)
    )
    folder = build(tmp_path / "index", weights=far)
    build_seismic(folder, EAGER)
    found = SeismicIndex.open(folder).search(far[1:20], 1, [str(number) for number in range(19)])
    assert found == InvertedIndex.open(folder).search(far[1:20], 1, [str(n) for n in range(19)])


def test_weights_that_it_cannot_hold_are_refused(tmp_path: Path) -> None:
    weights = vectors(0)
    weights.data[7] = 655.2  # an index holds up to 65,535 hundredths, half precision 65,504
    folder = build(tmp_path / "index", weights=weights)
    with pytest.raises(InputError, match="too high for seismic"):
        build_seismic(folder, USUAL)
    assert not (folder / "seismic").exists()


def test_too_few_are_not_an_answer(tmp_path: Path) -> None:
    folder = build(tmp_path / "index")
    build_seismic(folder, ApproximationSettings(name="seismic", postings=2, query_terms=1))
    asked = vectors(1, 3)
    found = SeismicIndex.open(folder).search(asked, 50, ["a", "b", "c"])
    assert found == InvertedIndex.open(folder).search(asked, 50, ["a", "b", "c"])


def test_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no seismic beside it"):
        SeismicIndex.open(build(tmp_path / "index"))


def test_a_missing_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "seismic", None)
    with pytest.raises(MissingPackageError) as error:
        build_seismic(build(tmp_path / "index"), USUAL)
    assert "pip install 'isthmus[ann]'" in str(error.value)


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build_seismic(build(tmp_path / "index"), USUAL)
    SeismicIndex.open(tmp_path / "index")
    assert not capfd.readouterr().out
