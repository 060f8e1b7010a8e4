"""Approximate dense search through faiss: it finds candidates, exact inner products rank them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.config.output import whole_folder
from isthmus.indexes.approximation import (
    About,
    ApproximateSettings,
    Approximation,
    measured,
    same_about,
    sampled_rows,
    usable_about,
    write_about,
)
from isthmus.indexes.dense.scan import Floats, Rows, import_faiss
from isthmus.indexes.integrity import parsing
from isthmus.indexes.manifest import Manifest
from isthmus.progress import Bar

_GRAPH = "vectors.faiss"
_BLOCK = 2**14
_TRAINING = 2**16  # vectors that quantisers learn from, at most
_PER_LIST = 39  # vectors of training that faiss wants for every list of an ivf


class Approximate:
    """A faiss index of the vectors, in eight bits each."""

    def __init__(self, index: Any, settings: ApproximateSettings) -> None:
        self._index = index
        self._settings = settings
        if settings.name == "hnsw":
            index.hnsw.efSearch = settings.effort
        else:
            index.nprobe = settings.effort

    @classmethod
    def open(cls, folder: Path, name: Approximation, manifest: Manifest) -> Approximate:
        """The approximation of a dense index; one of other vectors is refused."""
        about = usable_about(folder, name, manifest)
        faiss = import_faiss(f"backend={name}")
        file = folder / name / about.file
        with parsing(file, folder):
            index = faiss.read_index(str(file))
        return cls(index, about.settings)

    def near(self, queries: Floats, depth: int) -> Iterator[Rows]:
        """Rows that are probably among the `depth` best, query after query."""
        count = min(depth * self._settings.oversampling, self._index.ntotal)
        if self._settings.name == "hnsw":  # which returns no more than it meets
            self._index.hnsw.efSearch = max(self._settings.effort, count)
        _, found = self._index.search(queries, count)
        for rows in found:
            yield np.sort(rows[rows >= 0]).astype(np.int64)


def approximate(
    folder: Path,
    settings: ApproximateSettings,
    queries: npt.NDArray[np.floating[Any]] | None = None,
) -> About:
    """What the approximation beside a dense index is worth, built where it is not there yet.

    It is measured against the exact index with these queries, or with some of its own vectors.
    """
    from isthmus.indexes.dense.index import DenseIndex

    exact = DenseIndex.open(folder)
    if about := same_about(folder, settings, exact.manifest):
        return about
    faiss = import_faiss(f"approximate.name={settings.name}")
    built = _build(faiss, exact.vectors, settings)
    quick = DenseIndex(
        exact.manifest, exact.store, exact.vectors, approximate=Approximate(built, settings)
    )
    if queries is None:
        queries = exact.vectors[sampled_rows(len(exact))].astype(np.float32)
    with whole_folder(folder / settings.name) as partial:
        faiss.write_index(built, str(partial / _GRAPH))
        about = measured(settings, partial / _GRAPH, exact, quick, queries, "all at once")
        write_about(partial, about)
    return about


def _build(
    faiss: Any, vectors: npt.NDArray[np.floating[Any]], settings: ApproximateSettings
) -> Any:
    dimension, inner_product = vectors.shape[1], faiss.METRIC_INNER_PRODUCT
    if settings.name == "hnsw":
        eight_bits = faiss.ScalarQuantizer.QT_8bit
        index = faiss.IndexHNSWSQ(dimension, eight_bits, settings.neighbours, inner_product)
        index.hnsw.efConstruction = settings.construction
    else:
        # Four times the root, as faiss advises up to a million, where there are vectors to learn.
        lists = settings.lists or max(
            1, min(4 * int(len(vectors) ** 0.5), len(vectors) // _PER_LIST)
        )
        index = faiss.index_factory(dimension, f"IVF{lists},SQ8", inner_product)
    step = max(1, len(vectors) // _TRAINING)
    index.train(np.ascontiguousarray(vectors[::step][:_TRAINING], dtype=np.float32))
    with Bar(f"building {settings.name}", len(vectors), "documents") as bar:
        for start in range(0, len(vectors), _BLOCK):
            block = np.ascontiguousarray(vectors[start : start + _BLOCK], dtype=np.float32)
            index.add(block)
            bar.advance(len(block))
    return index
