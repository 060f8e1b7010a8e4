"""Seismic, as its authors set it up for SPLADE vectors (pyseismic-lsr).

The settings are those that they publish as the fastest for a recall of .99 (MS MARCO, index within
1.5 times the vectors). Building uses all cores; most of it is summing up, per cluster of every
list, all terms of all documents in it.
"""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from benchmarks.sparse_search.system import Effort, System
from benchmarks.sparse_search.vectors import ROWS, Matrix
from seismic import SeismicIndexRaw

from isthmus.indexes.inverted.quantisation import Rows

_CUTS, _FACTORS = (5, 10, 20, 30, 100), (1.0, 0.9, 0.8, 0.7, 0.5, 0.3)
_AT_A_TIME = 1_000_000  # documents, which bounds the memory that building takes


class Measured(System):
    """Efforts are query_cut (the strongest terms that are looked up) and heap_factor."""

    efforts = tuple(product(_CUTS, _FACTORS))

    def prepare(self) -> None:
        """Writes the vectors."""
        self.index.mkdir(parents=True)
        _write(self.documents, self.folder / "documents.bin")
        _write(self.queries, self.folder / "queries.bin")

    def build(self) -> None:
        """Clusters and sums up."""
        many = self.documents.shape[0] > _AT_A_TIME
        SeismicIndexRaw.build(
            str(self.folder / "documents.bin"),
            n_postings=3000,
            centroid_fraction=0.1,
            min_cluster_size=10,
            summary_energy=0.4,
            max_fraction=4.0,
            batched_indexing=_AT_A_TIME if many else None,
        ).save(str(self.index / "lists"))
        (self.folder / "documents.bin").unlink()

    def open(self) -> None:
        """Reads the index."""
        (file,) = self.index.iterdir()
        self._opened = SeismicIndexRaw.load(str(file))
        self._asked = [(row.indices.astype(np.int32), row.data) for row in self.queries]

    def search(self, number: int, depth: int, effort: Effort) -> Any:
        """Pairs of score and row."""
        cut, factor = effort
        return self._opened.search(*self._asked[number], depth, int(cut), factor, 0, True)

    def rows(self, found: Any) -> np.ndarray:
        """The second of each pair."""
        return np.array([row for _, row in found], dtype=np.int64)

    def search_all(self, depth: int, threads: int, effort: Effort) -> tuple[float, list[Any]]:
        """Its own batch, which reads the queries from a file."""
        (cut, factor), queries = effort, str(self.folder / "queries.bin")
        start = time.perf_counter()
        found = self._opened.batch_search(queries, depth, int(cut), factor, 0, True, threads)
        return len(found) / (time.perf_counter() - start), found


def _write(matrix: Matrix, file: Path) -> None:
    with file.open("wb") as stream:
        stream.write(np.array([matrix.shape[0]], dtype="<u4").data)
        for first in range(0, matrix.shape[0], ROWS):
            block = matrix[first : first + ROWS]
            _write_rows(Rows(block.indptr, block.indices, block.data), stream)


def _write_rows(rows: Rows, stream: BinaryIO) -> None:
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
