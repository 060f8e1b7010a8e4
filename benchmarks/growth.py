"""How an index grows: time, memory and bytes from ten thousand to millions of synthetic documents.

    python benchmarks/growth.py -o growth [--sizes 10000 100000 1000000] [--field bm25 ...]

Words of documents are drawn by Zipf's law from a million, 60 each; dense vectors have 128 numbers,
sparse ones 60 of 30,000 terms. Each index is built and searched in a process of its own. Prints a
table, and writes growth.tsv and growth.svg (log-log). Peak memory is that of the process over what
it has after its imports: files that are mapped count as far as they are in memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse

from isthmus.indexes.index import Index
from isthmus.indexes.manifest import (
    Bm25Field,
    Bm25Settings,
    CorpusOrigin,
    DenseField,
    EncoderOrigin,
    Manifest,
    SparseField,
)
from isthmus.indexes.writer import IndexWriter
from isthmus.records import Document

_BLOCK, _WORDS, _VOCABULARY, _TERMS, _NUMBERS = 4096, 60, 1_000_000, 30_000, 128
_QUERIES, _QUERY_WORDS = 50, 4
_COLUMNS = ("build s", "build MB", "bytes MB", "open s", "p50 ms", "search MB")


def main() -> None:
    """Prints a row per field and size."""
    options = argparse.ArgumentParser()
    options.add_argument("-o", "--output", type=Path, default=Path("growth"))
    options.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    options.add_argument("--field", nargs="+", default=["bm25", "dense", "sparse"])
    options.add_argument("--one", nargs=3, help="FIELD SIZE FOLDER, in this process, as JSON")
    chosen = options.parse_args()
    if chosen.one:
        field, size, folder = chosen.one
        print(json.dumps(_measured(field, int(size), Path(folder))))
        return
    chosen.output.mkdir(parents=True, exist_ok=True)
    rows = []
    print("| field | documents | " + " | ".join(_COLUMNS) + " |")
    print("|---|" + "--:|" * (1 + len(_COLUMNS)), flush=True)
    for field in chosen.field:
        for size in chosen.sizes:
            found = _in_processes(field, size, chosen.output)
            rows.append((field, size, *(found[name] for name in _COLUMNS)))
            shown = " | ".join(f"{value:,.3g}" for value in rows[-1][2:])
            print(f"| {field} | {size:,} | {shown} |", flush=True)
            lines = ["\t".join(("field", "documents", *_COLUMNS))]
            lines += ["\t".join(map(str, row)) for row in rows]
            (chosen.output / "growth.tsv").write_text("\n".join(lines) + "\n")
            _plot(rows, chosen.output / "growth.svg")


def _in_processes(field: str, size: int, output: Path) -> dict[str, float]:
    """Built in one process, searched in the next."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=output) as place:
        command = [sys.executable, __file__, "--one", field, str(size), f"{place}/index"]
        for _ in range(2):
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
            found |= json.loads(done.stdout.splitlines()[-1])
    return found


def _measured(field: str, size: int, folder: Path) -> dict[str, float]:
    before = _peak()
    began = time.perf_counter()
    if not folder.exists():
        _build(field, size, folder)
        return {"build s": time.perf_counter() - began, "build MB": _peak() - before}
    index = Index.open(folder)
    opened = time.perf_counter() - began
    files = (file for file in folder.rglob("*") if file.is_file())
    rng = np.random.default_rng(1)
    seconds = []
    for number in range(_QUERIES):
        query = _query(field, rng)
        began = time.perf_counter()
        index.search(field, query, 10, [str(number)])
        seconds.append(time.perf_counter() - began)
    return {
        "bytes MB": sum(file.stat().st_size for file in files) / 1e6,
        "open s": opened,
        "p50 ms": 1000 * median(seconds[5:]),
        "search MB": _peak() - before,
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _build(field: str, size: int, folder: Path) -> None:
    origin = EncoderOrigin(name="synthetic", fingerprint="synthetic")
    fields: dict[str, Any] = {
        "bm25": Bm25Field(settings=Bm25Settings().resolved("none")),
        "dense": DenseField(encoder=origin, dimension=_NUMBERS),
        "sparse": SparseField(encoder=origin, dimension=_TERMS),
    }
    begin = Manifest(
        corpus=CorpusOrigin(spec="synthetic", fingerprint=f"{size}"),
        fields={field: fields[field]},
    )
    with IndexWriter(folder, begin) as writer:
        for number, (documents, vectors) in enumerate(_blocks(field, size)):
            writer.add(documents, documents, vectors, record=number % 16 == 0)
        writer.commit()


def _blocks(field: str, size: int) -> Iterator[tuple[list[Document], dict[str, Any]]]:
    rng = np.random.default_rng(0)
    for first in range(0, size, _BLOCK):
        count = min(_BLOCK, size - first)
        texts = [""] * count
        if field == "bm25":
            texts = [" ".join(f"w{w}" for w in row) for row in _drawn(rng, count, _WORDS)]
        documents = [Document(f"d{first + n}", text) for n, text in enumerate(texts)]
        vectors: dict[str, Any] = {}
        if field == "dense":
            vectors = {field: rng.standard_normal((count, _NUMBERS), dtype=np.float32)}
        if field == "sparse":
            vectors = {field: _sparse(rng, count, _WORDS)}
        yield documents, vectors


def _drawn(rng: np.random.Generator, rows: int, width: int, most: int = _VOCABULARY) -> Any:
    """Numbers by Zipf's law: the logarithm of a rank is uniform."""
    return (most ** rng.random((rows, width))).astype(np.int64) - 1


def _sparse(rng: np.random.Generator, rows: int, width: int) -> Any:
    terms = _drawn(rng, rows, width, _TERMS).ravel()
    weights = rng.gamma(2.0, 0.5, rows * width).astype(np.float32)
    starts = np.arange(0, rows * width + 1, width)
    matrix = scipy.sparse.csr_matrix((weights, terms, starts), shape=(rows, _TERMS))
    matrix.sum_duplicates()
    return matrix


def _query(field: str, rng: np.random.Generator) -> Any:
    if field == "dense":
        return rng.standard_normal((1, _NUMBERS), dtype=np.float32)
    if field == "sparse":
        return _sparse(rng, 1, 20)
    return [" ".join(f"w{word}" for word in _drawn(rng, 1, _QUERY_WORDS)[0])]


def _plot(rows: list[tuple[Any, ...]], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    panels: Any = figure.subplots(2, 3)
    for panel, name in zip(panels.flat, _COLUMNS, strict=True):
        place = 2 + _COLUMNS.index(name)
        for field in dict.fromkeys(row[0] for row in rows):
            mine = [row for row in rows if row[0] == field]
            panel.plot([row[1] for row in mine], [row[place] for row in mine], ".-", label=field)
        panel.set(xscale="log", yscale="log", title=name)
    panels.flat[0].legend()
    figure.supxlabel("documents")
    figure.savefig(file)


if __name__ == "__main__":
    main()
