"""The time of a filtered query, by the fraction of documents that the filter lets through.

    python benchmarks/filters.py FOLDER

FOLDER is that of beside_others.py: passages with their vectors, and queries. Every passage gets a
number, drawn without repetition, and one of two languages. Times are of one query at a time, filter
parsed and applied anew for each, 100 passages deep.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from isthmus.indexes.filters import parse
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import (
    Bm25Field,
    Bm25Settings,
    CorpusOrigin,
    DenseField,
    EncoderOrigin,
    Manifest,
)
from isthmus.indexes.writer import IndexWriter
from isthmus.records import Document

_QUERIES, _WARM, _DEEP, _BLOCK = 200, 20, 100, 1024


def main() -> None:
    """Prints a row per filter."""
    data = Path(sys.argv[1])
    queries = [json.loads(line)["text"] for line in (data / "queries.jsonl").open()]
    vectors = np.load(data / "query_vectors.npy").astype(np.float32)
    print("| filter | bm25 p50 ms | p99 | dense p50 ms | p99 |\n|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as place:
        count = _build(data, Path(place) / "index")
        index = Index.open(Path(place) / "index")
        filters: dict[str, dict[str, Any] | None] = {
            "none": None,
            "1 %": {"number": {"$lt": count // 100}},
            "50 %": {"number": {"$lt": count // 2}},
            "25 %, by number and language": {"number": {"$lt": count // 2}, "lang": "en"},
        }
        for name, given in filters.items():
            row = []
            for field, asked in (("bm25", [[text] for text in queries]), ("dense", vectors)):
                row += _times(index, field, asked, given)
            print(f"| {name} | " + " | ".join(f"{one:.2f}" for one in row) + " |", flush=True)


def _build(data: Path, folder: Path) -> int:
    lines = [json.loads(line) for line in (data / "passages.jsonl").open(encoding="utf-8")]
    vectors = np.load(data / "vectors.npy", mmap_mode="r")
    rng = np.random.default_rng(0)
    numbers, languages = rng.permutation(len(lines)), rng.choice(["en", "de"], len(lines))
    documents = [
        Document(one["id"], one["text"], metadata={"number": int(number), "lang": str(language)})
        for one, number, language in zip(lines, numbers, languages, strict=True)
    ]
    origin = EncoderOrigin(name="given", fingerprint="given")
    begin = Manifest(
        corpus=CorpusOrigin(spec="passages", fingerprint="given"),
        fields={
            "bm25": Bm25Field(settings=Bm25Settings().resolved("english")),
            "dense": DenseField(encoder=origin, dimension=vectors.shape[1]),
        },
    )
    with IndexWriter(folder, begin) as writer:
        for first in range(0, len(documents), _BLOCK):
            block = documents[first : first + _BLOCK]
            writer.add(block, block, {"dense": vectors[first : first + _BLOCK]})
        writer.commit()
    return len(documents)


def _times(index: Index, field: str, asked: Any, given: dict[str, Any] | None) -> list[float]:
    """Median and 99th percentile in milliseconds."""
    step, seconds = max(1, len(asked) // _QUERIES), []
    for place in range(0, len(asked), step):
        query = asked[place] if field == "bm25" else asked[place : place + 1]
        began = time.perf_counter()
        masks = None if given is None else index.masks(parse(given))
        index.search(field, query, _DEEP, ["query"], masks)
        seconds.append(time.perf_counter() - began)
    counted = sorted(seconds[_WARM:])
    return [1000 * median(counted), 1000 * counted[int(0.99 * len(counted))]]


if __name__ == "__main__":
    main()
