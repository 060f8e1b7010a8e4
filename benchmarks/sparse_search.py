"""Exact sparse search against a plain inverted index and scipy, on vectors like SPLADE's.

The peer is written in the style of the SPLADE authors: one loop per posting list, 32-bit document
numbers and float32 weights, into an array of scores as long as the collection, then argpartition.
All three get the same whole numbers (floor(100 w)), so that all three have one right answer.

    python benchmarks/sparse_search.py [--documents 100000] [--queries 200] [--topics 250]

The vectors are made up: terms as frequent as Zipf's law has it, 100 to 250 a document, over a
vocabulary of 30,000; six in ten from the topic of the document, which it shares with `--topics`
others on average; weights favour rare terms. A query is 20 to 60 of a document's terms, with
noise. `--topics 0` leaves topics out, which is the worst case: nothing to order documents by.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import scipy
import scipy.sparse

from isthmus.indexes.inverted import InvertedIndex, usable_cores
from isthmus.indexes.inverting import InvertedBuilder
from isthmus.indexes.manifest import (
    CorpusOrigin,
    Description,
    EncoderOrigin,
    InvertedSettings,
    read_manifest,
)
from isthmus.records import Document

_VOCABULARY = 30_000
_TOPIC_TERMS = 400
_ROWS = 20_000
Answer = tuple[np.ndarray, np.ndarray]
System = Callable[[int, int], Answer]


def main() -> None:
    """Prints a line per system, depth and number of threads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--topics", type=int, default=250, help="documents per topic; 0: none")
    parser.add_argument("--rounds", type=int, default=3, help="the fastest of so many per query")
    options = parser.parse_args()
    documents, queries = _vectors(options.documents, options.queries, options.topics)
    frequencies = np.bincount(documents.indices, minlength=_VOCABULARY)
    met = frequencies[queries.indices].sum() / options.queries
    print(
        f"{options.documents:,} documents of {documents.nnz / options.documents:.0f} terms, "
        f"{options.queries} queries of {queries.nnz / options.queries:.0f} that meet {met:,.0f} "
        f"postings each; {usable_cores()} cores, numba {numba.__version__}, "
        f"numpy {np.__version__}, scipy {scipy.__version__}"
    )
    folder = Path(tempfile.mkdtemp(prefix="sparse_search-"))
    try:
        _compare(documents, queries, folder, options.rounds)
    finally:
        shutil.rmtree(folder)


def _compare(documents: Any, queries: Any, folder: Path, rounds: int) -> None:
    start = time.perf_counter()
    index = _build(documents, folder / "index")
    built = time.perf_counter() - start
    files = read_manifest(index).files.items()
    size = sum(f.bytes for name, f in files if name not in ("documents.arrow", "order.npy"))
    print(f"   isthmus: built in {built:6.1f} s, {size / documents.nnz:.2f} bytes per posting")
    start = time.perf_counter()
    columns = documents.tocsc()
    columns.sort_indices()
    built = time.perf_counter() - start
    lists = (columns.indptr.astype(np.int64), columns.indices, columns.data, documents.shape[0])
    print(f"     plain: built in {built:6.1f} s, 8.00 bytes per posting")
    transposed = scipy.sparse.csr_matrix((columns.data, columns.indices, columns.indptr),
                                         shape=documents.shape[::-1])  # fmt: skip
    asked = [queries[number] for number in range(queries.shape[0])]
    original = [query / 100 for query in asked]

    def plain(number: int, depth: int) -> Answer:
        query = asked[number]
        scores = _plain_scores(*lists, query.indices, query.data)
        return _top(scores, depth)

    def by_scipy(number: int, depth: int) -> Answer:
        found = (asked[number] @ transposed).tocsr()
        places, scores = _top(found.data, depth)
        return found.indices[places], scores

    for depth in (10, 1000):
        cuts = [plain(number, depth)[1][-1] for number in range(len(asked))]
        for threads in sorted({1, usable_cores()}):
            ours = InvertedIndex.open(index, threads)

            def isthmus(number: int, depth: int, ours: InvertedIndex = ours) -> Answer:
                return ours.find(original[number], depth, ["q"])[0]

            systems: dict[str, System] = {"isthmus": isthmus, "plain": plain, "scipy": by_scipy}
            seconds = _latencies(systems, len(asked), depth, rounds if threads == 1 else 1)
            rates = _rates(systems, ours, queries / 100, depth, threads)
            for name, system in systems.items():
                right = [
                    np.mean(np.sort(system(n, depth)[1])[::-1][:depth] >= cut)
                    for n, cut in enumerate(cuts)
                ]
                p50, p99 = np.percentile(seconds[name], [50, 99]) * 1000
                print(
                    f"k={depth:<5} threads={threads} {name:>8}: p50 {p50:8.3f} ms, p99 {p99:8.3f} "
                    f"ms, {rates[name]:8.1f} queries/s, recall {np.mean(right):.4f}; plain takes "
                    f"{np.median(seconds['plain']) / np.median(seconds[name]):5.2f} times as long, "
                    f"in a batch {rates[name] / rates['plain']:5.2f}"
                )


def _latencies(
    systems: dict[str, System], queries: int, depth: int, rounds: int
) -> dict[str, np.ndarray]:
    """Seconds per query, asked one at a time and in turns, so that a busy machine slows all."""
    taken = {name: np.full(queries, np.inf) for name in systems}
    for _ in range(rounds + 1):  # the first round also warms up
        for number in range(queries):
            for name, system in systems.items():
                start = time.perf_counter()
                system(number, depth)
                taken[name][number] = min(taken[name][number], time.perf_counter() - start)
    return taken


def _rates(
    systems: dict[str, System],
    ours: InvertedIndex,
    queries: Any,
    depth: int,
    threads: int,
) -> dict[str, float]:
    """Queries per second in one batch; the peers get as many threads as ours."""
    count = queries.shape[0]
    names = [str(number) for number in range(count)]
    rates = {}
    for name, system in systems.items():
        start = time.perf_counter()
        if name == "isthmus":
            ours.find(queries, depth, names)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(system, range(count), [depth] * count))
        rates[name] = count / (time.perf_counter() - start)
    return rates


@numba.njit(nogil=True)
def _plain_scores(
    starts: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray,
    documents: int,
    terms: np.ndarray,
    query: np.ndarray,
) -> np.ndarray:
    scores = np.zeros(documents, np.float32)
    for i in range(len(terms)):
        for place in range(starts[terms[i]], starts[terms[i] + 1]):
            scores[rows[place]] += query[i] * weights[place]
    return scores


def _top(scores: np.ndarray, depth: int) -> Answer:
    depth = min(depth, len(scores))
    found = np.argpartition(scores, len(scores) - depth)[len(scores) - depth :]
    found = found[np.argsort(-scores[found])]
    return found, scores[found]


def _build(documents: Any, folder: Path) -> Path:
    description = Description(
        kind="inverted",
        corpus=CorpusOrigin(spec="made up", fingerprint=""),
        titles=False,
        texts=False,
        encoder=EncoderOrigin(name="made up", fingerprint=""),
        dimension=_VOCABULARY,
        inverted=InvertedSettings(rounding="round"),
    )
    with InvertedBuilder(folder, description) as builder:
        for first in range(0, documents.shape[0], _ROWS):
            block = documents[first : first + _ROWS] / 100
            builder.add([Document(f"{first + row:09}", "") for row in range(block.shape[0])], block)
        return builder.finish({})


def _vectors(documents: int, queries: int, per_topic: int) -> tuple[Any, Any]:
    """Whole numbers in float32: floor(100 w)."""
    generator = np.random.default_rng(0)
    chances = 1 / (np.arange(_VOCABULARY) + 11.0)
    rarity = 1 - np.log(chances / chances[-1]) / np.log(chances[0] / chances[-1])
    zipf = np.cumsum(chances / chances.sum())
    topics = max(20, documents // per_topic) if per_topic else 1
    drawn = np.searchsorted(zipf, generator.random((topics, _TOPIC_TERMS)) ** 0.7)
    topic_terms = np.minimum(drawn, _VOCABULARY - 1)
    inside = np.cumsum(1 / (np.arange(_TOPIC_TERMS) + 3.0))
    blocks = []
    for first in range(0, documents, _ROWS):
        rows = min(_ROWS, documents - first)
        # Some terms are drawn twice and count once.
        lengths = (np.clip(generator.normal(175, 35, rows), 100, 250) * 1.25).astype(int)
        numbers = np.repeat(np.arange(rows), lengths)
        terms = np.searchsorted(zipf, generator.random(len(numbers)))
        topical = generator.random(len(numbers)) < (0.6 if per_topic else 0)
        topic = generator.integers(0, topics, rows)[numbers[topical]]
        which = np.searchsorted(inside / inside[-1], generator.random(len(topic)))
        terms[topical] = topic_terms[topic, which]
        weights = generator.gamma(2.0, 0.22, len(numbers)) * (0.4 + 0.8 * rarity[terms])
        weights *= np.where(topical, 1.3, 0.8)
        once, places = np.unique(numbers * _VOCABULARY + terms, return_index=True)
        values = np.floor(100 * np.minimum(weights[places], 3.4)).astype(np.float32)
        shape = (rows, _VOCABULARY)
        pairs = np.divmod(once[values > 0], _VOCABULARY)
        blocks.append(scipy.sparse.csr_matrix((values[values > 0], pairs), shape=shape))
    matrix = scipy.sparse.vstack(blocks, format="csr")
    return matrix, _queries(matrix, queries, zipf, generator)


def _queries(documents: Any, count: int, zipf: np.ndarray, generator: np.random.Generator) -> Any:
    terms: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for row in generator.integers(0, documents.shape[0], count):
        inner = slice(documents.indptr[row], documents.indptr[row + 1])
        known, strength = documents.indices[inner], documents.data[inner]
        length = int(generator.integers(20, 61))
        own = min(int(0.8 * length), len(known))
        chosen = generator.choice(len(known), own, replace=False, p=strength / strength.sum())
        noise = np.minimum(np.searchsorted(zipf, generator.random(length - own)), _VOCABULARY - 1)
        noise = np.setdiff1d(noise, known[chosen])
        terms.append(np.concatenate([known[chosen], noise]))
        drawn = (
            strength[chosen] * generator.gamma(4, 0.25, own),
            generator.gamma(2, 15, len(noise)),
        )
        weights.append(np.clip(np.floor(np.concatenate(drawn)), 1, 340))
    return _matrix(terms, weights)


def _matrix(terms: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> Any:
    starts = np.cumsum([0, *map(len, terms)])
    data = (np.concatenate(weights).astype(np.float32), np.concatenate(terms), starts)
    matrix = scipy.sparse.csr_matrix(data, shape=(len(terms), _VOCABULARY))
    matrix.sort_indices()
    return matrix


if __name__ == "__main__":
    main()
