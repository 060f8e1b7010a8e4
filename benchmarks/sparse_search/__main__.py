"""Runs the comparison and prints its table; see __init__.py."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from itertools import chain
from os import getloadavg
from pathlib import Path
from typing import Any

import benchmarks.sparse_search as package
import numpy as np
from benchmarks.sparse_search import vectors
from benchmarks.sparse_search.system import usable_cores
from benchmarks.sparse_search.table import markdown
from benchmarks.sparse_search.truth import brute_force
from benchmarks.sparse_search.turns import Row, Turns
from benchmarks.sparse_search.worker import FailedError, Worker

_SYSTEMS = ("isthmus", "plain", "lucene")
_PACKAGES = ("numpy", "scipy", "numba")
_DEPTHS = (10, 1000)


def main() -> None:
    """Prints a table per number of documents."""
    options = _options()
    report: dict[str, Any] = {"machine": _machine(options.anserini), "sizes": []}
    print(report["machine"])
    for documents in options.documents:
        folder = Path(tempfile.mkdtemp(prefix="sparse_search-"))
        report["sizes"].append({})
        try:
            for size in _compare(options, documents, folder):
                report["sizes"][-1] = size
                if options.output:
                    options.output.write_text(json.dumps(report, indent=1) + "\n")
                    options.output.with_suffix(".md").write_text(markdown(report))
        finally:
            shutil.rmtree(folder)
    print("\n" + markdown(report))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sparse_search",
        description=package.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000])
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="the fastest of so many per query")
    parser.add_argument("--systems", nargs="+", choices=_SYSTEMS, default=_SYSTEMS)
    parser.add_argument("--anserini", metavar="JAR", help="in the wheel of pyserini 0.25.0")
    parser.add_argument("--vectors", type=Path, help="a folder with documents.npz and queries.npz")
    parser.add_argument("--topics", type=int, default=250, help="documents per topic; 0: none")
    parser.add_argument("--patience", type=float, default=3600, help="seconds for one answer")
    parser.add_argument("--output", type=Path, help="a .json; the table goes beside it")
    options = parser.parse_args()
    if options.vectors:
        with np.load(options.vectors / "documents.npz") as stored:
            options.real = int(stored["shape"][0])
        if options.real < max(options.documents):
            parser.error(f"there are {options.real:,} documents in {options.vectors}")
    if not options.anserini:
        options.systems = [name for name in options.systems if name != "lucene"]
        print("lucene is left out: no --anserini")
    return options


def _machine(jar: str | None) -> str:
    cpu = Path("/proc/cpuinfo").read_text().partition("model name\t: ")[2].partition("\n")[0]
    versions = [f"{name} {version(name)}" for name in _PACKAGES]
    versions += [Path(jar).stem] if jar else []
    return f"{usable_cores()} cores of {cpu}; {', '.join(versions)}"


def _compare(options: argparse.Namespace, count: int, folder: Path) -> Iterator[dict[str, Any]]:
    """What is known so far, after every step: a run that is cut short loses one."""
    if options.vectors:
        vectors.write_real(folder, options.vectors, count, options.queries)
        kind = "real"
    else:
        kind = "made up"
        vectors.write_made_up(folder, count, options.queries, options.topics)
    documents, queries = vectors.read_documents(folder), vectors.read_queries(folder)
    asked = queries.shape[0]
    size = {
        "documents": count,
        "terms": documents.nnz / count,
        "queries": asked,
        "query_terms": queries.nnz / asked,
        "met": int(vectors.frequencies(documents)[queries.indices].sum()) / asked,
        "vectors": kind,
        "load": getloadavg()[0],
    }
    print(f"{count:,} documents", flush=True)
    truth = brute_force(documents, queries, _DEPTHS)
    turns = Turns(documents, queries, options.rounds)
    built: dict[str, Row] = {}
    for name in options.systems:
        built[name] = _build(name, options, folder)
        yield {**size, "rows": _rows(built, [])}
    measured: dict[int, list[Row]] = {}
    with ExitStack() as stack:
        for name, facts in built.items():
            if "failed" not in facts:
                worker = stack.enter_context(_worker(name, options, folder))
                turns.open(name, worker, facts)
        for depth in _DEPTHS:
            for rows in turns.measure(depth, truth[depth]):
                measured[depth] = rows
                turns.weigh()
                yield {**size, "rows": _rows(built, chain(*measured.values()))}


def _rows(built: dict[str, Row], measured: Iterable[Row]) -> list[Row]:
    rows = [{**built[row["system"]], **row} for row in measured]
    known = {row["system"] for row in rows}
    return rows + [{"system": name, **facts} for name, facts in built.items() if name not in known]


def _worker(name: str, options: argparse.Namespace, folder: Path) -> Worker:
    return Worker(name, options.patience, folder, folder / name, options.anserini or "")


def _build(name: str, options: argparse.Namespace, folder: Path) -> Row:
    (folder / name).mkdir()
    with _worker(name, options, folder) as worker:
        try:
            facts: Row = worker.call("build")
        except FailedError as failed:
            facts = {"failed": str(failed)}
    if "failed" not in facts:
        print(f"  {name}: built in {facts['build_seconds']:.1f} s", flush=True)
    else:
        print(f"  {name}: {facts['failed']}", flush=True)
    return facts


if __name__ == "__main__":
    main()
