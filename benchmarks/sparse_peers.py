"""Other people's sparse search, for sparse_search.py: each built from the same vectors.

Whole numbers in float32 go in; a peer answers one query with document numbers and scores.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.indexes.inverted.quantising import Rows
from isthmus.indexes.inverted.seismic import write_rows

Answer = tuple[np.ndarray, np.ndarray]
Search = Callable[[int, int], Answer]
_POINTS = 2_000
_REPEATS = 10  # of all queries, so that the virtual machine of Java is warm for most of them


def seismic(documents: Any, queries: Any, folder: Path, effort: tuple[int, float]) -> Search:
    """Seismic as its authors set it up; `effort` is query_cut and heap_factor."""
    from seismic import SeismicIndexRaw

    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "index"
    if not index.exists():
        source = folder.parent / "seismic.bin"
        with source.open("wb") as stream:
            stream.write(np.array([documents.shape[0]], dtype="<u4").data)
            write_rows(Rows(documents.indptr, documents.indices, documents.data), stream)
        SeismicIndexRaw.build(str(source)).save(str(index))
        source.unlink()
    lists = SeismicIndexRaw.load(str(index))
    asked = [(row.indices.astype(np.int32), row.data.astype(np.float32)) for row in queries]

    def search(number: int, depth: int) -> Answer:
        found = lists.search(*asked[number], depth, *effort, 0, True)
        return np.array([row for _, row in found]), np.array([score for score, _ in found])

    return search


def qdrant(documents: Any, queries: Any, folder: Path) -> Search:
    """An embedded qdrant shard with an index in memory."""
    import qdrant_edge as q

    folder.mkdir(parents=True, exist_ok=True)
    config = q.EdgeConfig(sparse_vectors={"terms": q.EdgeSparseVectorParams()})
    shard = q.EdgeShard.create(str(folder), config)
    for first in range(0, documents.shape[0], _POINTS):
        points = []
        for row in range(first, min(first + _POINTS, documents.shape[0])):
            inner = slice(documents.indptr[row], documents.indptr[row + 1])
            terms, weights = documents.indices[inner].tolist(), documents.data[inner].tolist()
            points.append(q.Point(row, {"terms": q.SparseVector(terms, weights)}))
        shard.update(q.UpdateOperation.upsert_points(points))
    shard.optimize()
    shard.flush()
    asked = [
        q.Query.Nearest(q.SparseVector(row.indices.tolist(), row.data.tolist()), using="terms")
        for row in queries
    ]

    def search(number: int, depth: int) -> Answer:
        found = shard.search(q.SearchRequest(asked[number], depth))
        return np.array([point.id for point in found]), np.array([point.score for point in found])

    return search


class Lucene:
    """Impact search of Lucene through Anserini, which is asked in a process of its own.

    It says how many queries a second it answered itself, without the time that Java takes to
    start. A weight of a query is a term that often.
    """

    def __init__(self, jar: str, documents: Any, queries: Any, folder: Path) -> None:
        self._jar, self._folder, self._queries = jar, folder, queries.shape[0]
        corpus = folder / "corpus"
        corpus.mkdir(parents=True)
        with (corpus / "documents.jsonl").open("w") as stream:
            for row in range(documents.shape[0]):
                inner = slice(documents.indptr[row], documents.indptr[row + 1])
                pairs = zip(documents.indices[inner], documents.data[inner], strict=True)
                vector = {f"t{term}": int(weight) for term, weight in pairs}
                stream.write(json.dumps({"id": str(row), "contents": "", "vector": vector}) + "\n")
        with (folder / "queries.tsv").open("w") as stream:
            for turn in range(_REPEATS):
                for number, row in enumerate(queries):
                    pairs = zip(row.indices, row.data, strict=True)
                    text = " ".join(" ".join([f"t{term}"] * int(weight)) for term, weight in pairs)
                    stream.write(f"{turn * self._queries + number}\t{text}\n")
        self._java(
            "index.IndexCollection", "-collection", "JsonVectorCollection", "-input", str(corpus),
            "-generator", "DefaultLuceneDocumentGenerator", "-optimize",
        )  # fmt: skip
        (corpus / "documents.jsonl").unlink()

    def search(self, depth: int) -> tuple[float, list[np.ndarray]]:
        """Queries per second on one thread, and the scores of every query."""
        run = self._folder / "run.txt"
        said = self._java(
            "search.SearchCollection", "-topics", str(self._folder / "queries.tsv"),
            "-topicReader", "TsvInt", "-output", str(run), "-hits", str(depth),
        )  # fmt: skip
        rate = re.search(r"queries processed in .* = ~([\d.]+) q/s", said)
        assert rate is not None, said[-2000:]
        scores: list[list[float]] = [[] for _ in range(self._queries)]
        for line in run.read_text().splitlines():
            number, _, _, _, score, _ = line.split()
            if int(number) < self._queries:
                scores[int(number)].append(float(score))
        return float(rate[1]), [np.array(found) for found in scores]

    def _java(self, name: str, *options: str) -> str:
        command = ["java", "-Xmx4g", "-cp", self._jar, f"io.anserini.{name}", *options]
        command += ["-index", str(self._folder / "index"), "-impact", "-pretokenized"]
        command += ["-threads", "1"]
        done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout + done.stderr
