"""Exact sparse search against its peers: a plain index, scipy, Seismic, qdrant-edge, Lucene.

`plain` is written in the style of the SPLADE authors: one loop per posting list, 32-bit document
numbers and float32 weights, into an array of scores as long as the collection, then argpartition.
All get the same whole numbers (floor(100 w)), so that all have one right answer. Seismic is
approximate: it is asked with less and with more effort, and the recall says what that found.

    python benchmarks/sparse_search.py [--documents 100000] [--queries 200] [--topics 250]
        [--vectors FOLDER] [--peers seismic qdrant] [--anserini JAR]

`--vectors` takes documents.npz and queries.npz, sparse matrices of scipy with whole numbers, of a
trained model say. `--anserini` is the jar inside the wheel of pyserini 0.25.0 (for Java 17).

Without them the vectors are made up: terms as frequent as Zipf's law has it, 100 to 250 a
document, over a vocabulary of 30,000; six in ten from the topic of the document, which it shares
with `--topics` others on average; weights favour rare terms. A query is 20 to 60 of a document's
terms, with noise. `--topics 0` leaves topics out, which is the worst case: nothing to order
documents by.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from os import getloadavg
from pathlib import Path
from typing import Any

import numba
import numpy as np
import scipy
import scipy.sparse
import sparse_peers

from isthmus.indexes.inverted.building import InvertedBuilder
from isthmus.indexes.inverted.index import InvertedIndex, usable_cores
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
_EFFORTS = ((5, 0.9), (10, 0.8), (30, 0.7))  # Seismic's query_cut and heap_factor
Answer = tuple[np.ndarray, np.ndarray]
System = Callable[[int, int], Answer]


def main() -> None:
    """Prints a line per system, depth and number of threads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--topics", type=int, default=250, help="documents per topic; 0: none")
    parser.add_argument("--rounds", type=int, default=3, help="the fastest of so many per query")
    parser.add_argument("--vectors", type=Path, help="a folder with documents.npz and queries.npz")
    parser.add_argument("--peers", nargs="*", choices=["seismic", "qdrant"], default=[])
    parser.add_argument("--anserini", metavar="JAR", help="asks Lucene too")
    options = parser.parse_args()
    if options.vectors:
        names = ("documents.npz", "queries.npz")
        documents, queries = (scipy.sparse.load_npz(options.vectors / name) for name in names)
        documents, queries = documents[: options.documents], queries[: options.queries]
    else:
        documents, queries = _vectors(options.documents, options.queries, options.topics)
    count, asked = documents.shape[0], queries.shape[0]
    frequencies = np.bincount(documents.indices, minlength=documents.shape[1])
    met = frequencies[queries.indices].sum() / asked
    print(
        f"{count:,} documents of {documents.nnz / count:.0f} terms, "
        f"{asked} queries of {queries.nnz / asked:.0f} that meet {met:,.0f} "
        f"postings each; {usable_cores()} cores under a load of {getloadavg()[0]:.1f}, "
        f"numba {numba.__version__}, numpy {np.__version__}, scipy {scipy.__version__}"
    )
    folder = Path(tempfile.mkdtemp(prefix="sparse_search-"))
    try:
        peers = _peers(documents, queries, folder, options.peers)
        _compare(documents, queries, folder, options.rounds, peers)
        if options.anserini:
            _ask_lucene(options.anserini, documents, queries, folder)
        else:
            print("    lucene: left out, no --anserini")
    finally:
        shutil.rmtree(folder)


def _peers(documents: Any, queries: Any, folder: Path, chosen: Sequence[str]) -> dict[str, System]:
    found: dict[str, System] = {}
    for name, package in (("seismic", "seismic"), ("qdrant", "qdrant_edge")):
        if name not in chosen or find_spec(package) is None:
            why = "is not installed" if name in chosen else "was not asked for"
            print(f"{name:>10}: left out, {why}")
            continue
        start = time.perf_counter()
        if name == "qdrant":
            found[name] = sparse_peers.qdrant(documents, queries, folder / name)
        else:
            for effort in _EFFORTS:
                label = f"{name} {effort[0]}/{effort[1]}"
                found[label] = sparse_peers.seismic(documents, queries, folder / name, effort)
        built, size = time.perf_counter() - start, _bytes(folder / name) / documents.nnz
        print(f"{name:>10}: built in {built:6.1f} s, {size:.2f} bytes per posting")
    return found


def _ask_lucene(jar: str, documents: Any, queries: Any, folder: Path) -> None:
    start = time.perf_counter()
    lucene = sparse_peers.Lucene(jar, documents, queries, folder / "lucene")
    built, size = time.perf_counter() - start, _bytes(folder / "lucene" / "index")
    print(f"    lucene: built in {built:6.1f} s, {size / documents.nnz:.2f} bytes per posting")
    products = documents @ queries.T.tocsr()
    for depth in (10, 1000):
        rate, scores = lucene.search(depth)
        cuts = [np.sort(products[:, [n]].toarray().ravel())[-depth] for n in range(len(scores))]
        right = [np.mean(found >= cut) for found, cut in zip(scores, cuts, strict=True)]
        print(
            f"k={depth:<5} threads=1   lucene: {rate:8.1f} queries/s, recall {np.mean(right):.4f}"
        )


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _compare(
    documents: Any, queries: Any, folder: Path, rounds: int, peers: dict[str, System]
) -> None:
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
            systems |= peers
            seconds = _latencies(systems, len(asked), depth, rounds if threads == 1 else 1)
            rates = _rates(systems, ours, queries / 100, depth, threads)
            for name, system in systems.items():
                right = [
                    np.sum(np.sort(system(n, depth)[1])[::-1][:depth] >= cut) / depth
                    for n, cut in enumerate(cuts)
                ]
                p50, p99 = np.percentile(seconds[name], [50, 99]) * 1000
                print(
                    f"k={depth:<5} threads={threads} {name:>14}: p50 {p50:8.3f} ms, p99 {p99:8.3f} "
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
        dimension=documents.shape[1],
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
