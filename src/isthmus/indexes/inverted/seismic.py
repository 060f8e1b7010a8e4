"""Approximate sparse search through Seismic, beside an inverted index.

Seismic (Bruch, Nardini, Rulli, Venturini, SIGIR 2024) keeps only the heaviest postings of a term,
in clusters with summaries. It lies in a folder of its own inside that of the index it was made of,
and can be deleted at any time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse
from pydantic import Field

from isthmus.config import Settings
from isthmus.config.output import whole_folder, write_json
from isthmus.errors import InputError, MismatchError, MissingPackageError
from isthmus.indexes.inverted.forward import weighed_rows
from isthmus.indexes.inverted.index import Answer, InvertedIndex
from isthmus.indexes.inverted.quantising import Rows, quantised
from isthmus.indexes.manifest import Manifest
from isthmus.indexes.selection import best
from isthmus.records import Ranking

_FOLDER, _LISTS, _ABOUT = "seismic", "lists", "seismic.json"
_QUERIES, _QUERY_TERMS = 200, 32


class SeismicSettings(Settings):
    """How much Seismic keeps, and how hard it looks: more of either finds more and takes longer."""

    postings: int = Field(3500, ge=1, description="kept per term, on average")
    clusters: float = Field(0.1, gt=0, le=1, description="per posting of a term")
    energy: float = Field(0.4, gt=0, le=1, description="share of a cluster's weights summarised")
    query_terms: int = Field(20, ge=1, description="the strongest of a query, looked up")
    heap_factor: float = Field(
        0.8, gt=0, le=1, description="clusters below the worst answer times this are left out"
    )


class SeismicAbout(Settings):
    """What a Seismic index was made of, and how much of the exact answer it finds."""

    settings: SeismicSettings
    postings: str
    depths: list[int]
    recall: list[float]
    speedup: list[float]
    queries: int

    def summary(self) -> str:
        """What a person wants to know before trusting it."""
        found = (
            f"{recall:.1%} of the best {depth:,}, {speedup:,.1f} times as fast as exact search"
            for depth, recall, speedup in zip(self.depths, self.recall, self.speedup, strict=True)
        )
        return f"seismic finds {'; '.join(found)} ({self.queries:,} queries, one at a time)"


class SeismicIndex:
    """Answers as an inverted index does, but may miss documents.

    Scores are Seismic's: those of the inverted index where its weights are whole and up to 2,048,
    rounded to 11 bits otherwise.
    """

    def __init__(self, exact: InvertedIndex, lists: Any, settings: SeismicSettings) -> None:
        self.manifest = exact.manifest
        self.store = exact.store
        self._exact = exact
        self._lists = lists
        self._settings = settings

    @classmethod
    def open(cls, folder: Path) -> SeismicIndex:
        """The Seismic index beside an inverted index; one of other weights is refused."""
        exact, about = InvertedIndex.open(folder), read_about(folder)
        if about is None:
            raise InputError(
                f"the index {str(folder)!r} has no seismic beside it",
                where=str(folder),
                allowed="an inverted index with a folder 'seismic' in it",
                remedy="build it with isthmus.indexes.inverted.seismic.build_seismic",
            )
        if about.postings != _fingerprint(exact.manifest):
            raise MismatchError(
                f"the seismic beside {str(folder)!r} was made of other weights",
                where=str(folder / _FOLDER),
                allowed="one made of the weights of this index",
                remedy=f"remove the folder {str(folder / _FOLDER)!r} and build it again",
            )
        with _silence():
            lists = import_seismic(str(folder)).SeismicIndexRaw.load(str(_file(folder / _FOLDER)))
        return cls(exact, lists, about.settings)

    def __len__(self) -> int:
        return len(self.store)

    def search(
        self,
        vectors: Any,
        depth: int,
        query_ids: Sequence[str],
        among: Collection[str] | None = None,
    ) -> list[Ranking]:
        """Documents of high inner product per query, best first; a choice `among` some is exact."""
        if among is not None:
            return self._exact.search(vectors, depth, query_ids, among)
        return self.store.rankings(query_ids, self.find(vectors, depth, query_ids))

    def find(self, vectors: Any, depth: int, query_ids: Sequence[str]) -> list[Answer]:
        """Rows and scores of what `search` answers; `vectors` is a sparse matrix of scipy."""
        assert depth > 0
        assert self.manifest.inverted is not None
        assert self.manifest.dimension is not None
        names = [f"query {query_id!r}" for query_id in query_ids]
        queries = quantised(vectors, self.manifest.inverted, self.manifest.dimension, names)
        return [
            self._answer(queries.terms[start:stop], queries.weights[start:stop], depth)
            for start, stop in zip(queries.starts[:-1], queries.starts[1:], strict=True)
        ]

    def _answer(self, terms: Any, weights: Any, depth: int) -> Answer:
        cut, factor = self._settings.query_terms, self._settings.heap_factor
        found = self._lists.search(
            terms.astype(np.int32), weights.astype(np.float32), depth, cut, factor, 0, True
        )
        scores = np.array([score for score, _ in found], dtype=np.float64)
        rows = np.array([row for _, row in found], dtype=np.int64)
        chosen = best(scores, self.store.ranks[rows], depth)
        return rows[chosen], scores[chosen]


def build_seismic(
    folder: Path, settings: SeismicSettings | None = None, queries: Any = None
) -> SeismicAbout:
    """What Seismic beside an inverted index is worth, built where it is not there yet.

    It is measured against the exact index with these queries (a sparse matrix of scipy), or with
    the strongest terms of some of the documents.
    """
    settings = settings or SeismicSettings()
    seismic = import_seismic(f"seismic beside {folder}")
    exact = InvertedIndex.open(folder, threads=1)
    about = read_about(folder)
    if about and (about.settings, about.postings) == (settings, _fingerprint(exact.manifest)):
        return about
    with whole_folder(folder / _FOLDER) as partial:
        source = partial / "vectors.bin"
        sample = _write_vectors(folder, exact.manifest, source)
        with _silence():
            lists = seismic.SeismicIndexRaw.build(
                str(source),
                n_postings=settings.postings,
                centroid_fraction=settings.clusters,
                summary_energy=settings.energy,
            )
            lists.save(str(_file(partial)))
        source.unlink()
        near = SeismicIndex(exact, lists, settings)
        about = _measured(exact, near, sample if queries is None else queries)
        write_json(partial / _ABOUT, about.model_dump())
    return about


def read_about(folder: Path) -> SeismicAbout | None:
    """What is known of the Seismic index beside an inverted index; None where there is none."""
    file = folder / _FOLDER / _ABOUT
    if not file.is_file():
        return None
    return SeismicAbout.parse(json.loads(file.read_text(encoding="utf-8")), where=str(file))


def import_seismic(needed_for: str) -> Any:
    """The package seismic, or what to install."""
    try:
        import seismic
    except ImportError:
        raise MissingPackageError("pyseismic-lsr", extra="ann", needed_for=needed_for) from None
    return seismic


def write_rows(rows: Rows, stream: BinaryIO) -> None:
    """Appends vectors as Seismic reads them: a count, then terms, then weights, 4 bytes each."""
    lengths = np.diff(rows.starts)
    words = np.empty(len(lengths) + 2 * len(rows.terms), dtype="<u4")
    firsts = np.arange(len(lengths)) + 2 * np.asarray(rows.starts[:-1])
    words[firsts] = lengths
    inside = np.arange(len(rows.terms)) - np.repeat(rows.starts[:-1], lengths)
    places = np.repeat(firsts + 1, lengths) + inside
    words[places] = rows.terms
    words[places + np.repeat(lengths, lengths)] = rows.weights.astype("<f4").view("<u4")
    stream.write(words.data)


def _write_vectors(folder: Path, manifest: Manifest, file: Path) -> scipy.sparse.csr_matrix:
    """Writes all rows; queries to measure with, made of some of them."""
    assert manifest.inverted is not None
    assert manifest.dimension is not None
    chosen = np.unique(np.linspace(0, manifest.documents - 1, _QUERIES).astype(int))
    sample, first = [], 0
    with file.open("wb") as stream:
        stream.write(np.array([manifest.documents], dtype="<u4").data)
        for matrix in weighed_rows(folder):
            names = [f"row {first + row}" for row in range(matrix.shape[0])]
            write_rows(quantised(matrix, manifest.inverted, manifest.dimension, names), stream)
            here = chosen[(chosen >= first) & (chosen < first + matrix.shape[0])] - first
            sample += [_strongest(matrix[row]) for row in here]
            first += matrix.shape[0]
    return scipy.sparse.csr_matrix(scipy.sparse.vstack(sample))


def _strongest(row: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
    chosen = np.argsort(-row.data, kind="stable")[:_QUERY_TERMS]
    parts = (row.data[chosen], row.indices[chosen], [0, len(chosen)])
    return scipy.sparse.csr_matrix(parts, shape=row.shape)


def _measured(exact: InvertedIndex, near: SeismicIndex, queries: Any) -> SeismicAbout:
    asked = [queries[number] for number in range(queries.shape[0])]
    depths = [depth for depth in (10, 1000) if depth <= len(exact)] or [len(exact)]
    recall, speedup = [], []
    for depth in depths:
        found, seconds = [], []
        for index in (exact, near):
            index.find(asked[0], depth, ["query"])  # whatever only the first search costs
            began = time.perf_counter()
            found.append([index.find(query, depth, ["query"])[0][0] for query in asked])
            seconds.append(time.perf_counter() - began)
        shares = [
            len(np.intersect1d(right, rows)) / max(1, len(right))
            for right, rows in zip(*found, strict=True)
        ]
        recall.append(float(np.mean(shares)))
        speedup.append(seconds[0] / seconds[1])
    return SeismicAbout(
        settings=near._settings,
        postings=_fingerprint(exact.manifest),
        depths=depths,
        recall=recall,
        speedup=speedup,
        queries=len(asked),
    )


def _file(folder: Path) -> Path:
    return folder / _LISTS


def _fingerprint(manifest: Manifest) -> str:
    return manifest.files["weights.npy"].xxh3 + manifest.files["offsets.npy"].xxh3


@contextmanager
def _silence() -> Iterator[None]:
    # Seismic talks to the file descriptor itself, past sys.stdout, where results belong.
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
