"""Opening and searching an index against another checkout: how many times as long it takes.

    python benchmarks/opening.py OTHER/src [--documents 100000] [--rounds 10]

The other checkout builds the indexes, so that both can read them. Every round starts a process of
each, in turns, which opens every index for the first time in its life, opens it again, and asks it.
Times are of the processor, medians over rounds. `cold`: files are compared with their checksums,
since nothing is remembered yet.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from isthmus.indexes.bm25.builder import build_bm25
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.inverted.builder import InvertedBuilder
from isthmus.indexes.manifest import (
    Bm25Settings,
    CorpusOrigin,
    Description,
    EncoderOrigin,
    InvertedSettings,
)
from isthmus.indexes.segments.index import open_index
from isthmus.indexes.segments.writer import IndexWriter
from isthmus.records import Document

_DIMENSION, _VOCABULARY, _QUERIES = 128, 30_000, 20
_NAMES = [str(number) for number in range(_QUERIES)]


def main() -> None:
    """Prints a line per kind of index and step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--task", choices=["compare", "build", "ask"], default="compare")
    options = parser.parse_args()
    if options.task == "build":
        _build(options.other, options.documents)
    elif options.task == "ask":
        print(json.dumps(_ask(options.other, options.documents)))
    else:
        with tempfile.TemporaryDirectory(prefix="opening-") as place:
            _compare(Path(place), options.other, options.documents, options.rounds)


def _compare(place: Path, other: Path, documents: int, rounds: int) -> None:
    mine, folder = Path(__file__).resolve().parents[1] / "src", place / "indexes"

    def run(tree: Path, task: str) -> str:
        command = [sys.executable, __file__, str(folder), "--documents", str(documents)]
        environment = {**os.environ, "PYTHONPATH": str(tree), "ISTHMUS_CACHE": str(place / "cache")}
        return subprocess.run(  # noqa: S603
            [*command, "--task", task], env=environment, stdout=subprocess.PIPE, check=True
        ).stdout.decode()

    run(other, "build")
    total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{documents:,} documents, {total / 2**20:,.0f} MiB in all")
    cold = json.loads(run(mine, "ask"))
    times = [[json.loads(run(tree, "ask")) for tree in (other, mine)] for _ in range(rounds)]
    for kind, steps in cold.items():
        print(f"{kind:>9}   cold: {1000 * steps['first']:9.2f} ms")
        for step in steps:
            before, now = (np.array([one[tree][kind][step] for one in times]) for tree in (0, 1))
            print(
                f"{kind:>9} {step:>6}: {1000 * np.median(before):9.2f} ms before, "
                f"{1000 * np.median(now):9.2f} ms now, {np.median(now / before):5.2f} times as long"
            )


def _vectors(documents: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    rows = np.repeat(np.arange(documents), 60)
    terms = (_VOCABULARY * draw.random(len(rows)) ** 3).astype(int)
    shape = (documents, _VOCABULARY)
    sparse = scipy.sparse.csr_matrix((draw.gamma(2, 0.3, len(rows)), (rows, terms)), shape=shape)
    return draw.standard_normal((documents, _DIMENSION)).astype(np.float32), sparse


def _build(folder: Path, documents: int) -> None:
    dense, sparse = _vectors(documents)
    words = (2000 * np.random.default_rng(1).random((documents, 40)) ** 2).astype(int)
    texts = [Document(f"{n:08}", " ".join(f"w{w}" for w in row)) for n, row in enumerate(words)]
    corpus, encoder = CorpusOrigin(spec="", fingerprint=""), EncoderOrigin(name="", fingerprint="")
    known: dict[str, Any] = {"corpus": corpus, "titles": False, "encoder": encoder}
    of_dense = Description(kind="dense", dimension=_DIMENSION, dtype="float32", **known)
    of_sparse = Description(
        kind="inverted", dimension=_VOCABULARY, inverted=InvertedSettings(), **known
    )
    for name in ("dense", "segments"):
        with DenseBuilder(folder / name, of_dense) as builder:
            builder.add(texts, dense)
            builder.finish({})
    for part in range(5):
        with IndexWriter(folder / "segments") as writer:
            writer.add([Document(f"{part} {number}", "") for number in range(99)], dense[:99])
            writer.delete([f"{part:08}"])
            writer.commit()
    with InvertedBuilder(folder / "inverted", of_sparse) as inverting:
        inverting.add(texts, sparse)
        inverting.finish({})
    of_bm25 = Description(kind="bm25", corpus=corpus, titles=False, bm25=Bm25Settings())
    build_bm25(texts, folder / "bm25", of_bm25, {})


def _ask(folder: Path, documents: int) -> dict[str, dict[str, float]]:
    dense, sparse = _vectors(documents)
    asked: dict[str, Any] = {
        "dense": dense[:_QUERIES],
        "segments": dense[:_QUERIES],
        "inverted": sparse[:_QUERIES],
        "bm25": [f"w{number} w{3 * number}" for number in range(_QUERIES)],
    }
    taken = {}
    for kind, queries in asked.items():
        index, first = _clocked(lambda kind=kind: open_index(folder / kind), 1)
        _, again = _clocked(lambda kind=kind: open_index(folder / kind), 30)
        search = lambda index=index, queries=queries: index.search(queries, 10, _NAMES)  # noqa: E731
        search()
        taken[kind] = {"first": first, "again": again, "search": _clocked(search, 5)[1]}
    return taken


def _clocked(what: Callable[[], Any], times: int) -> tuple[Any, float]:
    taken = []
    for _ in range(times):
        start = time.process_time()
        value = what()
        taken.append(time.process_time() - start)
    return value, float(np.median(taken))


if __name__ == "__main__":
    main()
