"""Building the approximations of a dense index with faiss: hnsw and ivf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.config.output import whole_folder
from isthmus.indexes.approximation import (
    About,
    ApproximationSettings,
    measured,
    same_about,
    sampled_rows,
    write_about,
)
from isthmus.indexes.dense.faiss_approximation import FaissApproximation
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.dense.scan import import_faiss
from isthmus.progress import Bar

_GRAPH = "vectors.faiss"
_BLOCK = 2**14
_TRAINING = 2**16  # vectors that quantisers learn from, at most
_PER_LIST = 39  # vectors of training that faiss wants for every list of an ivf


def build_faiss(
    folder: Path,
    settings: ApproximationSettings,
    queries: npt.NDArray[np.floating[Any]] | None = None,
) -> About:
    """Recall and speed of faiss beside a dense index; it is built if it is not there yet.

    It is measured against the exact index with these queries, or with some of its own vectors.
    """
    exact = DenseIndex.open(folder)
    if about := same_about(folder, settings, exact.manifest):
        return about
    faiss = import_faiss(f"approximate.name={settings.name}")
    built = _build(faiss, exact.vectors, settings)
    quick = DenseIndex(
        exact.manifest,
        exact.store,
        exact.vectors,
        approximation=FaissApproximation(built, settings),
    )
    if queries is None:
        queries = exact.vectors[sampled_rows(len(exact))].astype(np.float32)
    with whole_folder(folder / settings.name) as partial:
        faiss.write_index(built, str(partial / _GRAPH))
        about = measured(settings, partial / _GRAPH, exact, quick, queries, "all at once")
        write_about(partial, about)
    return about


def _build(
    faiss: Any, vectors: npt.NDArray[np.floating[Any]], settings: ApproximationSettings
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
