"""The inverted index of this project."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.sparse_search.system import System
from benchmarks.sparse_search.vectors import ROWS, Matrix

from isthmus.indexes.inverted import kernels  # noqa: F401 - memory is counted from here on
from isthmus.indexes.inverted.builder import InvertedBuilder
from isthmus.indexes.inverted.index import InvertedIndex
from isthmus.indexes.manifest import CorpusOrigin, Description, EncoderOrigin, InvertedSettings
from isthmus.indexes.verification import read_manifest
from isthmus.records import Document

_IDS = ("documents.arrow", "order.npy")
_FIRST = 5_000


class Measured(System):
    """Memory-mapped lists, asked through `find`."""

    def prepare(self) -> None:
        """Compiles the kernels, which an installation does once."""
        first = self.folder / "first"
        self._build(first, self.documents[:_FIRST])
        InvertedIndex.open(first).find(self.queries[:1] / 100, 10, ["q"])

    def build(self) -> None:
        """Makes the index, blocks of rows at a time."""
        self._build(self.index, self.documents)

    def _build(self, folder: Path, documents: Matrix) -> None:
        description = Description(
            kind="inverted",
            corpus=CorpusOrigin(spec="benchmark", fingerprint=""),
            titles=False,
            texts=False,
            encoder=EncoderOrigin(name="benchmark", fingerprint=""),
            dimension=documents.shape[1],
            inverted=InvertedSettings(rounding="round"),
        )
        with InvertedBuilder(folder, description) as builder:
            for first in range(0, documents.shape[0], ROWS):
                block = documents[first : first + ROWS] / 100
                ids = range(first, first + block.shape[0])
                builder.add([Document(f"{number:09}", "") for number in ids], block)
            builder.finish({})

    def bytes(self) -> tuple[int, int]:
        """Ids are no part of scoring."""
        whole, _ = super().bytes()
        files = read_manifest(self.index).files.items()
        return whole, sum(file.bytes for name, file in files if name not in _IDS)

    def open(self) -> None:
        """Maps the lists."""
        original = self.queries / 100
        self._original = original
        self._asked = [original[number] for number in range(original.shape[0])]
        self._names = [str(number) for number in range(original.shape[0])]
        self._threads = 0
        self._use(1)

    def _use(self, threads: int) -> None:
        # One index at a time: a page that two have mapped would count twice.
        if threads != self._threads:
            self._threads, self._opened = threads, InvertedIndex.open(self.index, threads)

    def search(self, number: int, depth: int) -> Any:
        """Rows and scores."""
        self._use(1)
        return self._opened.find(self._asked[number], depth, ["q"])[0]

    def rows(self, found: Any) -> np.ndarray:
        """The first of the two."""
        return np.asarray(found[0])

    def search_all(self, depth: int, threads: int) -> tuple[float, list[Any]]:
        """One batch."""
        self._use(threads)
        start = time.perf_counter()
        found = self._opened.find(self._original, depth, self._names)
        return len(found) / (time.perf_counter() - start), list(found)
