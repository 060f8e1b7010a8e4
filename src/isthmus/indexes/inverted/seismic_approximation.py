"""Approximate sparse search through Seismic, beside an inverted index.

Seismic (Bruch, Nardini, Rulli, Venturini, SIGIR 2024) keeps only the heaviest postings of a term,
in clusters with summaries.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import scipy.sparse

from isthmus.config.output import whole_folder
from isthmus.errors import InputError, needing
from isthmus.indexes.approximation import (
    About,
    Approximation,
    ApproximationSettings,
    measured,
    same_about,
    sampled_rows,
    write_about,
)
from isthmus.indexes.backends import usable_about
from isthmus.indexes.index import Answer, VectorIndex
from isthmus.indexes.integrity import parsing
from isthmus.indexes.inverted.forward import weighed_rows
from isthmus.indexes.inverted.index import InvertedIndex
from isthmus.indexes.inverted.quantisation import Rows, quantised
from isthmus.indexes.manifest import Manifest
from isthmus.indexes.selection import best

_NAME: Approximation = "seismic"
_LISTS = "lists"
_HIGHEST = float(np.finfo(np.float16).max)
_QUERY_TERMS = 32  # of a document, where documents serve as queries


class SeismicIndex(VectorIndex):
    """Answers as an inverted index does, but may miss documents.

    Scores are Seismic's: those of the inverted index where its weights are whole and up to 2,048,
    rounded to 11 bits otherwise.
    """

    def __init__(self, exact: InvertedIndex, lists: Any, settings: ApproximationSettings) -> None:
        self.manifest = exact.manifest
        self.store = exact.store
        self._exact = exact
        self._lists = lists
        self._settings = settings

    @classmethod
    def open(cls, folder: Path) -> SeismicIndex:
        """The Seismic index beside an inverted index; one of other weights is refused."""
        exact = InvertedIndex.open(folder)
        about = usable_about(folder, _NAME, exact.manifest)
        seismic = _class(import_seismic(f"backend={_NAME}"), exact.manifest)
        file = folder / _NAME / about.file
        with parsing(file, folder), _silence():
            lists = seismic.load(str(file))
        return cls(exact, lists, about.settings)

    def prepared(self, vectors: Any, query_ids: Sequence[str]) -> Rows:
        """The queries as `answers` takes them."""
        return self._exact.prepared(vectors, query_ids)

    def answers(
        self,
        queries: Rows,
        depth: int,
        among: Collection[str] | None = None,
        floors: npt.NDArray[np.float64] | None = None,
    ) -> list[Answer]:
        """Rows and scores of what `search` answers; a choice `among` some documents is exact.

        So is the answer to a query of which Seismic found fewer than `depth`.
        """
        assert depth > 0
        if among is not None:
            return self._exact.answers(queries, depth, among, floors)
        found = []
        for number, (start, stop) in enumerate(pairwise(queries.starts)):
            one = Rows(
                np.array([0, stop - start]), queries.terms[start:stop], queries.weights[start:stop]
            )
            answer = self._answer(one, depth)
            if len(answer[0]) < min(depth, len(self)):
                floor = None if floors is None else floors[number : number + 1]
                (answer,) = self._exact.answers(one, depth, None, floor)
            found.append(answer)
        return found

    def _answer(self, query: Rows, depth: int) -> Answer:
        # Seismic panics at terms above the highest that any document has.
        known = query.terms < self._lists.dim
        found = self._lists.search(
            query.terms[known].astype(np.int32),
            query.weights[known].astype(np.float32),
            depth,
            self._settings.query_terms,
            self._settings.heap_factor,
            0,
            True,
        )
        scores = np.array([score for score, _ in found], dtype=np.float64)
        rows = np.array([row for _, row in found], dtype=np.int64)
        chosen = best(scores, self.store.ranks[rows], depth)
        return rows[chosen], scores[chosen]


def build_seismic(
    folder: Path,
    settings: ApproximationSettings,
    queries: scipy.sparse.csr_matrix | None = None,
) -> About:
    """Recall and speed of Seismic beside an inverted index; it is built if it is not there yet.

    It is measured against the exact index with these queries, or with the strongest terms of some
    of the documents.
    """
    assert settings.name == _NAME
    exact = InvertedIndex.open(folder, threads=1)  # as many as Seismic has
    if about := same_about(folder, settings, exact.manifest):
        return about
    seismic = _class(import_seismic(f"approximate.name={_NAME}"), exact.manifest)
    with whole_folder(folder / _NAME) as partial:
        source = partial / "vectors.bin"
        sample = _write_vectors(folder, exact.manifest, source)
        with _silence():
            lists = seismic.build(
                str(source),
                n_postings=settings.postings,
                centroid_fraction=settings.clusters,
                summary_energy=settings.energy,
            )
            lists.save(str(partial / _LISTS))
        source.unlink()
        near = SeismicIndex(exact, lists, settings)
        asked = sample if queries is None else queries
        about = measured(settings, partial / _LISTS, exact, near, asked, "one at a time")
        write_about(partial, about)
    return about


def import_seismic(needed_for: str) -> Any:
    """The package seismic, or what to install."""
    with needing("pyseismic-lsr", extra="ann", needed_for=needed_for):
        import seismic
    return seismic


def _class(seismic: Any, manifest: Manifest) -> Any:
    """Seismic's class for terms of 16 bits, or of 32 if the vocabulary is larger."""
    assert manifest.dimension is not None
    return seismic.SeismicIndexRaw if manifest.dimension <= 2**16 else seismic.SeismicIndexRawLV


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
    chosen = sampled_rows(manifest.documents)
    sample, first = [], 0
    with file.open("wb") as stream:
        stream.write(np.array([manifest.documents], dtype="<u4").data)
        for matrix in weighed_rows(folder):
            names = [f"row {first + row}" for row in range(matrix.shape[0])]
            rows = quantised(matrix, manifest.inverted, manifest.dimension, names)
            _check_weights(rows, folder)
            write_rows(rows, stream)
            here = chosen[(chosen >= first) & (chosen < first + matrix.shape[0])] - first
            sample += [_strongest(matrix[row]) for row in here]
            first += matrix.shape[0]
    return scipy.sparse.csr_matrix(scipy.sparse.vstack(sample))


def _check_weights(rows: Rows, folder: Path) -> None:
    if (highest := rows.weights.max(initial=0)) > _HIGHEST:
        raise InputError(
            f"a weight of {highest:,.0f} is too high for seismic, which keeps them in 16 bits",
            where=str(folder),
            allowed=f"weights up to {_HIGHEST:,.0f}, after they were multiplied by inverted.scale",
            remedy="build the index with a smaller inverted.scale, or search it exactly",
        )


def _strongest(row: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
    chosen = np.argsort(-row.data, kind="stable")[:_QUERY_TERMS]
    parts = (row.data[chosen], row.indices[chosen], [0, len(chosen)])
    return scipy.sparse.csr_matrix(parts, shape=row.shape)


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
