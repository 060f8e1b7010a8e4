"""An index in segments against the same documents in one piece: how many times as long it takes.

    python benchmarks/segments.py [--documents 100000] [--segments 8 32] [--kinds dense inverted]

Times are of the processor, in turns, medians over queries: neighbours on the machine disturb those
least. Every answer is compared with that of one piece. `deleted`: every segment has a tenth more
documents, which were deleted. With OPENBLAS_NUM_THREADS=1 dense search does not wait for threads
that a busy machine has put aside.

Vectors are made up: a document is of one of 400 topics. Inverted: about 150 terms of 30,000, six in
ten from the topic's own, queries 40 of a document's. Dense: 128 numbers around the topic's.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from os import getloadavg
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from isthmus.indexes.cores import usable_cores
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.inverted.builder import InvertedBuilder
from isthmus.indexes.inverted.index import InvertedIndex
from isthmus.indexes.manifest import (
    CorpusOrigin,
    Description,
    EncoderOrigin,
    InvertedSettings,
    Segment,
)
from isthmus.indexes.segments.index import SegmentedIndex
from isthmus.records import Document

_VOCABULARY, _TOPICS, _TOPIC_TERMS, _DIMENSION = 30_000, 400, 400, 128
_BATCH, _ROUNDS, _QUERIES = 64, 1, 128


def main() -> None:
    """Prints a line per kind, depth, batch and number of segments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--segments", type=int, nargs="*", default=[8, 32])
    parser.add_argument("--kinds", nargs="*", default=["dense", "inverted"])
    options = parser.parse_args()
    print(
        f"{options.documents:,} documents, {_QUERIES} queries; {usable_cores()} cores under a load "
        f"of {getloadavg()[0]:.1f}, numpy {np.__version__}"
    )
    for kind in options.kinds:
        with tempfile.TemporaryDirectory(prefix="segments-") as folder:
            _compare(kind, options.documents, options.segments, Path(folder))


def _compare(kind: str, documents: int, counts: Sequence[int], folder: Path) -> None:
    generator = np.random.default_rng(0)
    draw = _dense if kind == "dense" else _sparse
    (vectors, queries), (others, _) = draw(documents, generator), draw(documents // 10, generator)
    names = [f"{number:09}" for number in range(documents)]
    indexes: dict[str, Any] = {"1": _build(kind, names, vectors, folder / "whole")}
    for count in counts:
        for gone in (False, True):
            label = f"{count}{' deleted' if gone else ''}"
            indexes[label] = _segments(
                kind, vectors, others if gone else others[:0], count, folder / label
            )
    for depth in (10, 1000):
        for batch in (1, _BATCH):
            _print(kind, depth, batch, _seconds(indexes, queries, depth, batch))


def _print(kind: str, depth: int, batch: int, seconds: dict[str, float]) -> None:
    for label, taken in seconds.items():
        print(
            f"{kind:>8} k={depth:<5} {batch:>2} at once  segments {label:>10}: {taken * 1000:8.2f} "
            f"ms, {taken / seconds['1']:5.2f} times as long as in one piece"
        )


def _seconds(indexes: dict[str, Any], queries: Any, depth: int, batch: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {label: [] for label in indexes}
    names = [str(number) for number in range(batch)]
    for turn in range(_ROUNDS + 1):
        for first in range(0, _QUERIES, batch):
            asked, answers = queries[first : first + batch], []
            for label, index in indexes.items():
                start = time.process_time()
                answers.append(index.search(asked, depth, names))
                if turn:  # the first round warms up
                    taken[label].append(time.process_time() - start)
            assert all(answer == answers[0] for answer in answers)
    return {label: float(np.median(times)) for label, times in taken.items()}


def _segments(kind: str, vectors: Any, others: Any, count: int, folder: Path) -> SegmentedIndex:
    """The vectors in so many segments, each with its share of the others, deleted."""
    stack: Any = np.concatenate if kind == "dense" else scipy.sparse.vstack
    indexes, deleted = [], []
    for part in range(count):
        ranges = [
            (some.shape[0] * part // count, some.shape[0] * (part + 1) // count)
            for some in (vectors, others)
        ]
        (low, high), (first, last) = ranges
        names = [f"{number:09}" for number in range(low, high)]
        gone = [f"gone {number}" for number in range(first, last)]
        both = stack([vectors[low:high], others[first:last]])
        indexes.append(_build(kind, names + gone, both, folder / str(part)))
        deleted.append(np.arange(len(names), len(names) + len(gone)))
    listed = [Segment(name=str(n), documents=len(index)) for n, index in enumerate(indexes)]
    manifest = indexes[0].manifest.model_copy(update={"segments": listed})
    return SegmentedIndex(manifest, indexes, deleted)


def _build(kind: str, names: Sequence[str], vectors: Any, folder: Path) -> Any:
    dense = kind == "dense"
    description = Description(
        kind="dense" if dense else "inverted",
        corpus=CorpusOrigin(spec="made up", fingerprint=""),
        titles=False,
        texts=False,
        encoder=EncoderOrigin(name="made up", fingerprint=""),
        dimension=vectors.shape[1],
        dtype="float32" if dense else None,
        inverted=None if dense else InvertedSettings(),
    )
    builder: Any = DenseBuilder if dense else InvertedBuilder
    folder.parent.mkdir(exist_ok=True)
    with builder(folder, description) as building:
        building.add([Document(name, "") for name in names], vectors)
        path = building.finish({})
    return DenseIndex.open(path) if dense else InvertedIndex.open(path)


def _dense(documents: int, generator: np.random.Generator) -> tuple[Any, Any]:
    topics = np.random.default_rng(2).standard_normal((_TOPICS, _DIMENSION))
    vectors = topics[generator.integers(0, _TOPICS, documents)]
    vectors += generator.standard_normal(vectors.shape)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[generator.integers(0, documents, _QUERIES)]
    noise = 0.1 * generator.standard_normal(queries.shape)
    return vectors.astype(np.float32), (queries + noise).astype(np.float32)


def _sparse(documents: int, generator: np.random.Generator) -> tuple[Any, Any]:
    zipf = np.cumsum(1 / (np.arange(_VOCABULARY) + 11.0))
    size = (_TOPICS, _TOPIC_TERMS)
    topics = np.searchsorted(zipf / zipf[-1], np.random.default_rng(2).random(size) ** 0.7)
    rows = np.repeat(np.arange(documents), 160)
    terms = np.searchsorted(zipf / zipf[-1], generator.random(len(rows)))
    topical = generator.random(len(rows)) < 0.6
    of = generator.integers(0, _TOPICS, documents)[rows[topical]]
    places = (_TOPIC_TERMS * generator.random(len(of)) ** 2).astype(int)
    terms[topical] = topics[of, places]
    # Drawn twice, a term is not twice as strong.
    pairs = np.unique(rows * _VOCABULARY + np.minimum(terms, _VOCABULARY - 1))
    rows, terms = np.divmod(pairs, _VOCABULARY)
    weights = generator.gamma(2, 0.25, len(pairs)).astype(np.float32)
    shape = (documents, _VOCABULARY)
    vectors = scipy.sparse.csr_matrix((weights, (rows, terms)), shape=shape)
    queries = vectors[generator.integers(0, documents, _QUERIES)]
    queries.data *= generator.random(queries.nnz) < 40 / 150
    queries.eliminate_zeros()
    return vectors, queries


if __name__ == "__main__":
    main()
