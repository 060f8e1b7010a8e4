"""Impact search of Lucene through Anserini, which answers files of queries.

It says itself how many queries a second it answered, without the time that Java takes to start.
That includes what Anserini does around Lucene: it reads the id of every hit from the index, which
is what a thousand results of a small collection mostly cost. A weight of a query is a term that
often. Memory is the most that Java held at any time, of 4 GB that it may.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from typing import Any

import numpy as np
from benchmarks.sparse_search.system import System, usable_cores
from benchmarks.sparse_search.vectors import ROWS

_SECONDS = 30


class Measured(System):
    """Asked with the jar inside the wheel of pyserini 0.25.0, which wants Java 17."""

    one_at_a_time = False

    def prepare(self) -> None:
        """Writes the documents."""
        corpus = self.folder / "corpus"
        corpus.mkdir(parents=True)
        for first in range(0, self.documents.shape[0], ROWS):  # a thread takes a file
            block = self.documents[first : first + ROWS]
            with (corpus / f"{first}.jsonl").open("w") as stream:
                for row in range(block.shape[0]):
                    inner = slice(block.indptr[row], block.indptr[row + 1])
                    pairs = zip(block.indices[inner], block.data[inner], strict=True)
                    vector = {f"t{term}": int(weight) for term, weight in pairs}
                    line = {"id": str(first + row), "contents": "", "vector": vector}
                    stream.write(json.dumps(line) + "\n")

    def build(self) -> None:
        """Indexes on all cores and merges into one segment."""
        self._java(
            "index.IndexCollection", "-collection", "JsonVectorCollection",
            "-generator", "DefaultLuceneDocumentGenerator", "-input", str(self.folder / "corpus"),
            "-optimize", "-threads", str(usable_cores()),
        )  # fmt: skip
        shutil.rmtree(self.folder / "corpus")

    def open(self) -> None:
        """Lucene opens when it is asked."""

    def search_all(self, depth: int, threads: int) -> tuple[float, list[Any]]:
        """Its own rate, and the lines of its run per query."""
        count, repeats, rate = self.queries.shape[0], 1, math.inf
        # Java compiles while it runs: all queries are repeated until that counts for little.
        while repeats * count / rate < _SECONDS:
            repeats *= 4
            self._write_queries(repeats)
            said = self._java(
                "search.SearchCollection", "-topics", str(self.folder / "queries.tsv"),
                "-topicReader", "TsvInt", "-output", str(self.folder / "run.txt"),
                "-hits", str(depth), "-threads", str(threads),
            )  # fmt: skip
            counted = re.search(r"queries processed in .* = ~([\d.]+) q/s", said)
            assert counted is not None, said[-2000:]
            rate = float(counted[1])
        found: list[list[str]] = [[] for _ in range(count)]
        with (self.folder / "run.txt").open() as stream:
            for line in stream:
                number = int(line.partition(" ")[0])
                if number < count:
                    found[number].append(line)
        return rate, list(found)

    def _write_queries(self, repeats: int) -> None:
        texts = []
        for query in self.queries:
            pairs = zip(query.indices, query.data, strict=True)
            texts.append(" ".join(" ".join([f"t{term}"] * int(weight)) for term, weight in pairs))
        lines = (f"{number}\t{text}\n" for number, text in enumerate(texts * repeats))
        (self.folder / "queries.tsv").write_text("".join(lines))

    def rows(self, found: Any) -> np.ndarray:
        """The third column."""
        return np.array([line.split()[2] for line in found], dtype=np.int64)

    def _java(self, name: str, *options: str) -> str:
        command = ["java", "-Xmx4g", "-cp", self.jar, f"io.anserini.{name}", *options]
        command += ["-index", str(self.index), "-impact", "-pretokenized"]
        done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout + done.stderr
