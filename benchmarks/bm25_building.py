"""Building a BM25 index within a bound of memory, and with bm25s, which holds all tokens.

    python benchmarks/bm25_building.py [--passages 1000000] [--memory 0.25] [--queries 300]

Passages are crops of real texts. Each of the two runs in a process of its own, with the same
analysis of the same file, and answers the same queries; every document and score is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import bm25s
import numpy as np

from isthmus.collections import open_collection, open_corpus
from isthmus.indexes.bm25.analyzer import Analyzer
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import Bm25Settings
from isthmus.retrieval.index import index

_DATA = Path(os.environ.get("ISTHMUS_DATA", Path(__file__).parents[2] / "shared" / "data"))
_TEXTS = ("texts/enwiki_sample.jsonl.zst", "texts/openstax.jsonl.zst")
_COLLECTION = "collections/openwiki"
_CHARACTERS = 360  # about 60 words
_DEPTH = 100
_SETTINGS = Bm25Settings().resolved("english")


def main() -> None:
    """Prints CPU seconds and peak memory of both, their ratios, and whether answers are equal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--memory", type=float, default=0.25, help="the bound in GiB")
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--only", choices=["isthmus", "bm25s"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only is not None:
        print(json.dumps(_measured(options)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = _write_passages(folder / "corpus.jsonl", options.passages)
        bound, average = options.memory * 1024, words / options.passages
        print(f"{options.passages:,} passages of {average:.0f} words, bound {bound:,.0f} MiB")
        found = {}
        for only in ("isthmus", "bm25s"):
            command = [sys.executable, *sys.argv, "--only", only, "--folder", str(folder)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603
            found[only] = json.loads(done.stdout)
            told = ", ".join(f"{key} {value:,.0f}" for key, value in found[only].items())
            print(f"{only:8}{told}", flush=True)
        mine, theirs = ((folder / f"{only}.json").read_text() for only in found)
    seconds, memory = (
        found["isthmus"][key] / found["bm25s"][key] for key in ("CPU seconds", "peak MiB")
    )
    print(f"isthmus : bm25s = {seconds:.2f} in time, {memory:.2f} in peak memory")
    same = "equal" if mine == theirs else "NOT EQUAL"
    print(f"the best {_DEPTH} of {options.queries} queries, documents and scores: {same}")


def _measured(options: Any) -> dict[str, float]:
    before, began = _held("RssAnon"), time.process_time()
    peak, ended = before, threading.Event()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(0.01):
            peak = max(peak, _held("RssAnon"))

    threading.Thread(target=sample, daemon=True).start()
    work = _build if options.only == "isthmus" else _build_with_bm25s
    answers = work(options.folder, options.memory)
    seconds = time.process_time() - began
    ended.set()
    resident = _held("VmHWM")
    texts = [query.text for query in open_collection(f"beir:{_DATA / _COLLECTION}").queries()]
    found = list(islice(answers(texts), options.queries))
    (options.folder / f"{options.only}.json").write_text(json.dumps(found))
    return {
        "CPU seconds": seconds,
        "peak MiB": (peak - before) / 2**20,
        "before MiB": before / 2**20,
        "resident MiB with mapped files": resident / 2**20,
    }


def _build(folder: Path, memory: float) -> Any:
    how = {"bm25": dict(_SETTINGS), "memory": memory}
    made = index(str(folder / "corpus.jsonl"), folder / "index", settings=how)

    def answers(texts: list[str]) -> Iterator[Any]:
        opened = Index.open(made)
        for text in texts:
            yield list(opened.search("bm25", [text], _DEPTH, ["q"])[0])

    return answers


def _build_with_bm25s(folder: Path, memory: float) -> Any:
    analyzer = Analyzer(_SETTINGS)
    vocabulary: dict[str, int] = {}
    tokens = [
        [vocabulary.setdefault(t, len(vocabulary)) for t in analyzer.terms(document.contents(True))]
        for document in open_corpus(str(folder / "corpus.jsonl")).documents()
    ]
    scorer = bm25s.BM25(k1=_SETTINGS.k1, b=_SETTINGS.b, method="lucene")
    scorer.index((tokens, vocabulary), create_empty_token=False, show_progress=False)
    scorer.save(folder / "bm25s", show_progress=False)

    def answers(texts: list[str]) -> Iterator[Any]:
        for text in texts:
            numbers = scorer.get_tokens_ids(analyzer.terms(text))
            scores = scorer.get_scores_from_ids(numbers)
            rows = np.argsort(-scores, kind="stable")[:_DEPTH]  # ids are in the order of rows
            yield [(_name(row), float(scores[row])) for row in rows if scores[row] > 0]

    return answers


def _write_passages(file: Path, count: int) -> int:
    """Writes crops of real texts, drawn at random; the number of their words."""
    sources = [*(str(_DATA / name) for name in _TEXTS), f"beir:{_DATA / _COLLECTION}"]
    texts = [document.text for name in sources for document in open_corpus(name).documents()]
    draw, words = random.Random(0), 0
    lengths = np.cumsum([len(text) for text in texts])
    with file.open("w", encoding="utf-8") as stream:
        for row in range(count):
            place = draw.randrange(int(lengths[-1]))
            number = int(np.searchsorted(lengths, place, side="right"))
            start = max(0, place - int(lengths[number]) + len(texts[number]) - _CHARACTERS // 2)
            crop = texts[number][
                start : start + draw.randint(_CHARACTERS // 2, 3 * _CHARACTERS // 2)
            ]
            words += len(crop.split())
            stream.write(json.dumps({"_id": _name(row), "text": crop}) + "\n")
    return words


def _name(row: int) -> str:
    return f"p{row:09}"


def _held(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
