"""Building a dense index: vectors are appended block by block; and a graph beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from isthmus.config.output import whole_folder, write_json, writing
from isthmus.config.sealed_json import sealed
from isthmus.errors import InputError
from isthmus.indexes.arrays import flush, give_up, mapped, write_header
from isthmus.indexes.construction import (
    VectorBuilder,
    complete,
    document_writer,
    read_progress,
    record_progress,
    refuse_empty,
    start_anew,
)
from isthmus.indexes.dense.hnsw import (
    ABOUT,
    HNSW,
    About,
    Graph,
    HnswSettings,
    check_graph,
    fingerprint,
    import_faiss,
    read_about,
    sampled_rows,
)
from isthmus.indexes.dense.index import VECTORS, DenseIndex, unusable
from isthmus.indexes.integrity import described
from isthmus.indexes.manifest import Description, workplace
from isthmus.progress import Bar
from isthmus.records import Document

_NORM_ROWS = 2**16
_GRAPH = "vectors.faiss"
_GRAPH_ROWS = 2**14  # added at a time
_TRAINING = 2**16  # vectors that the quantiser learns from, at most


class DenseBuilder(VectorBuilder):
    """Takes documents with their vectors, block by block, and makes a dense index of them."""

    def __init__(self, folder: Path, description: Description) -> None:
        assert description.dimension is not None
        assert description.dtype is not None
        self._folder = folder
        self._description = description
        self._dimension = description.dimension
        self._dtype = np.dtype(description.dtype).newbyteorder("<")
        self._row_bytes = self._dimension * self._dtype.itemsize
        with writing(folder):
            self.rows, offset = self._resume()
            self._index = workplace(folder) / "index"
            self._documents = document_writer(folder, description, offset)
            self._vectors: BinaryIO = (self._index / VECTORS).open("r+b" if self.rows else "wb")
            write_header(self._vectors, self._dtype, 0, self._dimension)
            self._vectors.truncate(self._vectors.tell() + self.rows * self._row_bytes)
            self._vectors.seek(0, 2)

    def add(self, documents: Sequence[Document], vectors: npt.NDArray[np.floating[Any]]) -> None:
        """Appends one block and records it; once this returns, no crash can undo it."""
        assert vectors.shape == (len(documents), self._dimension)
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(vectors, dtype=self._dtype)
        wrong = unusable(stored)
        if len(wrong):
            raise InputError(
                f"the vector of document {documents[wrong[0]].id!r} (number "
                f"{self.rows + int(wrong[0]) + 1:,} of the corpus) is not finite in {self._dtype}",
                "check the encoder: its training may have diverged; or store float32",
            )
        with writing(self._folder):
            self._documents.add(documents)
            self._vectors.write(stored.data)
            flush(self._vectors)
            offset = self._documents.flush()
            self.rows += len(documents)
            record_progress(self._folder, self._description, {"rows": self.rows, "offset": offset})

    def stored_vectors(self, folder: Path) -> Iterator[Any]:
        """All vectors of a finished segment, in place."""
        yield mapped(folder / VECTORS, folder)

    def finish(self, request: Mapping[str, Any]) -> Path:
        """The finished index under its final name; `request` is what was asked for."""
        refuse_empty(self.rows, self._description)
        with writing(self._folder):
            self._documents.finish()
            write_header(self._vectors, self._dtype, self.rows, self._dimension)
            flush(self._vectors)
            self._vectors.close()
            vectors = np.load(self._index / VECTORS, mmap_mode="r")
            norm = _largest_norm(vectors)
            return complete(self._folder, self._description, request, self.rows, norm)

    def _resume(self) -> tuple[int, int]:
        """Rows and bytes of documents that earlier work left whole; 0 and 0 when it starts anew."""
        file = workplace(self._folder) / "index" / VECTORS
        progress = read_progress(self._folder, self._description)
        if progress is not None and file.is_file():
            rows, header = progress["rows"], BytesIO()
            write_header(header, self._dtype, 0, self._dimension)
            if file.stat().st_size >= header.tell() + rows * self._row_bytes:
                return rows, progress["offset"]
        start_anew(self._folder)
        return 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._documents.close()
        give_up(self._vectors)


def _largest_norm(vectors: npt.NDArray[np.floating[Any]]) -> float:
    blocks = range(0, len(vectors), _NORM_ROWS)
    return max(
        float(np.linalg.norm(vectors[start : start + _NORM_ROWS].astype(np.float64), axis=1).max())
        for start in blocks
    )


def build_hnsw(
    folder: Path,
    exact: DenseIndex,
    settings: HnswSettings,
    queries: npt.NDArray[np.floating[Any]] | None = None,
) -> About:
    """Recall and speed of the graph beside the index in a folder; it is built if it is not there.

    It is measured with these queries, or with some of the index's own vectors.
    """
    about = read_about(folder)
    if about is not None and about.settings == settings:
        try:
            check_graph(folder, about)
        except InputError:
            about = None
        if about is not None and about.made_of == fingerprint(exact.manifest):
            return about
    faiss = import_faiss("hnsw")
    built = _build(faiss, exact.vectors, settings)
    if queries is None:
        queries = exact.vectors[sampled_rows(len(exact))].astype(np.float32)
    with whole_folder(folder / HNSW) as partial:
        faiss.write_index(built, str(partial / _GRAPH))
        about = _measured(settings, partial / _GRAPH, exact, Graph(built, settings), queries)
        write_json(partial / ABOUT, sealed(about.model_dump()))
    return about


def _build(faiss: Any, vectors: npt.NDArray[np.floating[Any]], settings: HnswSettings) -> Any:
    eight_bits = faiss.ScalarQuantizer.QT_8bit
    index = faiss.IndexHNSWSQ(
        vectors.shape[1], eight_bits, settings.neighbours, faiss.METRIC_INNER_PRODUCT
    )
    index.hnsw.efConstruction = settings.construction
    step = max(1, len(vectors) // _TRAINING)
    index.train(np.ascontiguousarray(vectors[::step][:_TRAINING], dtype=np.float32))
    with Bar("building hnsw", len(vectors), "documents") as bar:
        for start in range(0, len(vectors), _GRAPH_ROWS):
            block = np.ascontiguousarray(vectors[start : start + _GRAPH_ROWS], dtype=np.float32)
            index.add(block)
            bar.advance(len(block))
    return index


def _measured(
    settings: HnswSettings,
    file: Path,
    exact: DenseIndex,
    graph: Graph,
    queries: npt.NDArray[np.floating[Any]],
) -> About:
    names = [str(number) for number in range(len(queries))]
    documents = exact.manifest.documents
    depths = [depth for depth in (10, 1000) if depth <= documents] or [documents]
    recall, speedup = [], []
    for depth in depths:
        found, seconds = [], []
        for index in (exact, exact.approximated(graph)):
            index.find(queries[:1], depth, names[:1])  # warm-up
            began = time.perf_counter()
            found.append([rows for rows, _ in index.find(queries, depth, names)])
            seconds.append(time.perf_counter() - began)
        shares = [
            len(np.intersect1d(right, rows)) / len(right)
            for right, rows in zip(*found, strict=True)
        ]
        recall.append(float(np.mean(shares)))
        speedup.append(seconds[0] / seconds[1])
    return About(
        settings=settings,
        made_of=fingerprint(exact.manifest),
        file=file.name,
        stored=described(file.parent, [file.name])[file.name],
        depths=depths,
        recall=recall,
        speedup=speedup,
        queries=len(queries),
    )
