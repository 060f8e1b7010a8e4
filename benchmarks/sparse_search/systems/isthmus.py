"""The sparse field of an index of this project."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.sparse_search.system import System
from benchmarks.sparse_search.vectors import ROWS, Matrix

from isthmus.indexes.index import Index
from isthmus.indexes.manifest import (
    CorpusOrigin,
    EncoderOrigin,
    Manifest,
    SparseField,
    SparseSettings,
)
from isthmus.indexes.sparse import kernels  # noqa: F401 - memory is counted from here on
from isthmus.indexes.sparse.field import SparseSearch
from isthmus.indexes.vectors import Answer
from isthmus.indexes.writer import IndexWriter
from isthmus.records import Document

_FIRST = 5_000
_FIELD = "sparse"


class Measured(System):
    """Memory-mapped lists, asked for rows alone."""

    def prepare(self) -> None:
        """Compiles the kernels, which an installation does once."""
        first = self.folder / "first"
        self._build(first, self.documents[:_FIRST])
        self._found(_opened(first, 1), self.queries[:1] / 100, 10)

    def build(self) -> None:
        """Makes the index, blocks of rows at a time."""
        self._build(self.index, self.documents)

    def _build(self, folder: Path, documents: Matrix) -> None:
        field = SparseField(
            titles=False,
            encoder=EncoderOrigin(name="benchmark", fingerprint=""),
            dimension=documents.shape[1],
            settings=SparseSettings(rounding="round"),
        )
        corpus = CorpusOrigin(spec="benchmark", fingerprint="")
        with IndexWriter(folder, Manifest(corpus=corpus, fields={_FIELD: field})) as writer:
            for first in range(0, documents.shape[0], ROWS):
                block = documents[first : first + ROWS] / 100
                ids = range(first, first + block.shape[0])
                some = [Document(f"{number:09}", "") for number in ids]
                writer.add(some, some, {_FIELD: block}, record=False)
            writer.commit()

    def bytes(self) -> tuple[int, int]:
        """Documents are no part of scoring."""
        whole, _ = super().bytes()
        segments = Index.open(self.index).manifest.segments
        files = [file for one in segments for file in one.files_of(_FIELD).values()]
        return whole, sum(file.bytes for file in files)

    def open(self) -> None:
        """Maps the lists."""
        original = self.queries / 100
        self._original = original
        self._asked = [original[number] for number in range(original.shape[0])]
        self._threads = 0
        self._use(1)

    def _use(self, threads: int) -> None:
        # One index at a time: a page that two have mapped would count twice.
        if threads != self._threads:
            self._threads, self._search = threads, _opened(self.index, threads)

    @staticmethod
    def _found(search: SparseSearch, queries: Matrix, depth: int) -> list[Answer]:
        count = queries.shape[0]
        prepared = search.prepared(queries, [str(number) for number in range(count)])
        return search.answers(prepared, depth, None, np.full(count, -np.inf))

    def search(self, number: int, depth: int) -> Any:
        """Rows and scores."""
        self._use(1)
        return self._found(self._search, self._asked[number], depth)[0]

    def rows(self, found: Any) -> np.ndarray:
        """The first of the two."""
        return np.asarray(found[0])

    def search_all(self, depth: int, threads: int) -> tuple[float, list[Any]]:
        """One batch."""
        self._use(threads)
        start = time.perf_counter()
        found = self._found(self._search, self._original, depth)
        return len(found) / (time.perf_counter() - start), list(found)


def _opened(folder: Path, threads: int) -> SparseSearch:
    (segment,) = Index.open(folder).segments
    field = segment.manifest.fields[_FIELD]
    assert isinstance(field, SparseField)
    counts, rows = segment.about.fields[_FIELD], len(segment)
    ranks = segment.ranks.__getitem__
    return SparseSearch(segment.part(_FIELD), field, counts, rows, ranks, threads)
