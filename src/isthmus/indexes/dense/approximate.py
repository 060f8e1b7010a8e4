"""Approximate dense search through faiss: it finds candidates, exact inner products rank them.

Lies in a folder of its own inside the folder of a dense index, and can be deleted at any time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from isthmus.config import Settings
from isthmus.config.output import whole_folder, write_json
from isthmus.errors import InputError, MismatchError
from isthmus.indexes.dense.scanning import Floats, Rows, import_faiss
from isthmus.indexes.manifest import Manifest
from isthmus.progress import Bar

Approximation = Literal["hnsw", "ivf"]
_GRAPH, _ABOUT = "vectors.faiss", "approximate.json"
_BLOCK = 2**14
_TRAINING = 2**16  # vectors that quantisers learn from, at most
_PER_LIST = 39  # vectors of training that faiss wants for every list of an ivf


class ApproximateSettings(Settings):
    """How vectors are found without looking at all of them."""

    name: Approximation = Field("hnsw", description="a graph of neighbours; or ivf, lists by place")
    neighbours: int = Field(32, ge=2, description="hnsw: links of a vector")
    construction: int = Field(200, ge=1, description="hnsw: vectors met while one is placed")
    lists: int | None = Field(None, ge=1, description="ivf: how many; null: by the corpus's size")
    effort: int = Field(128, ge=1, description="vectors (hnsw) or lists (ivf) met while searching")
    oversampling: int = Field(2, ge=1, description="candidates scored exactly for every answer")


class About(Settings):
    """What an approximation was made of, and how much of the exact answer it finds."""

    settings: ApproximateSettings
    vectors: str
    recall: float
    depth: int
    queries: int
    speedup: float

    def summary(self) -> str:
        """What a person wants to know before trusting it."""
        return (
            f"{self.settings.name}: finds {self.recall:.1%} of the {self.depth} nearest documents, "
            f"{self.speedup:,.1f} times as fast as exact search ({self.queries:,} queries)"
        )


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
        faiss = import_faiss(f"backend={name}")
        about = read_about(folder, name)
        if about is None:
            raise InputError(
                f"the index {str(folder)!r} has no {name} beside its vectors",
                where=f"backend={name}",
                allowed="numpy, faiss, or what was built with it",
                remedy=f"run its `isthmus index` command again with --set approximate.name={name}",
            )
        if about.vectors != _fingerprint(manifest):
            raise MismatchError(
                f"the {name} beside {str(folder)!r} was made of other vectors",
                where=str(folder / name),
                allowed="one made of the vectors of this index",
                remedy=f"remove the folder {str(folder / name)!r} and build it again",
            )
        return cls(faiss.read_index(str(folder / name / _GRAPH)), about.settings)

    def near(self, queries: Floats, depth: int) -> Iterator[Rows]:
        """Rows that are probably among the `depth` best, query after query."""
        count = min(depth * self._settings.oversampling, self._index.ntotal)
        if self._settings.name == "hnsw":  # which returns no more than it meets
            self._index.hnsw.efSearch = max(self._settings.effort, count)
        _, found = self._index.search(queries, count)
        for rows in found:
            yield np.sort(rows[rows >= 0]).astype(np.int64)


def read_about(folder: Path, name: Approximation) -> About | None:
    """What is known of an approximation; None where there is none."""
    file = folder / name / _ABOUT
    if not file.is_file():
        return None
    return About.parse(json.loads(file.read_text(encoding="utf-8")), where=str(file))


def approximate(
    folder: Path, queries: npt.NDArray[np.floating[Any]], settings: ApproximateSettings
) -> About:
    """Builds the approximation of a dense index and measures it on queries; reuses the same one."""
    from isthmus.indexes.dense.index import DenseIndex

    exact = DenseIndex.open(folder)
    about = read_about(folder, settings.name)
    if about and (about.settings, about.vectors) == (settings, _fingerprint(exact.manifest)):
        return about
    faiss = import_faiss(f"approximate.name={settings.name}")
    built = _build(faiss, exact.vectors, settings)
    depth = min(10, len(exact))
    names = [str(number) for number in range(len(queries))]
    near = Approximate(built, settings)
    quick = DenseIndex(exact.manifest, exact.store, exact.vectors, approximate=near)
    found, seconds = [], []
    for index in (exact, quick):
        index.find(queries[:1], depth, names[:1])  # whatever only the first search costs
        began = time.perf_counter()
        found.append(index.find(queries, depth, names))
        seconds.append(time.perf_counter() - began)
    shared = [len(np.intersect1d(a[0], b[0])) / depth for a, b in zip(*found, strict=True)]
    about = About(
        settings=settings,
        vectors=_fingerprint(exact.manifest),
        recall=float(np.mean(shared)),
        depth=depth,
        queries=len(queries),
        speedup=seconds[0] / seconds[1],
    )
    with whole_folder(folder / settings.name) as partial:
        faiss.write_index(built, str(partial / _GRAPH))
        write_json(partial / _ABOUT, about.model_dump())
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


def _fingerprint(manifest: Manifest) -> str:
    return manifest.files["vectors.npy"].xxh3
