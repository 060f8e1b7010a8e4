"""What each view of the documents adds: words, one vector, token vectors, and their fusions.

    python benchmarks/views.py MODEL [MODEL ...] [--collections NAME ...] [--queries N] [--jobs N]

Indexes the shared collections as `isthmus index COLLECTION -m MODEL` does, and measures up to 1,000
test queries of each with bm25, dense, tokens (the first 100 of both, ranked by tokens alone), bm25
and dense, and all three, which is the default. Prints nDCG@10 and RR@10, and of how many
collections a fusion is better or worse than bm25 and dense (paired t-tests, Holm over collections).
`--values FILE` keeps the values of all queries, collection by collection.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import isthmus
from isthmus.collections import Problems
from isthmus.evaluation.measures import per_query
from isthmus.evaluation.statistics import holm, paired_t_test
from isthmus.records import Query, Ranking, Run
from isthmus.retrieval.searcher import open_searcher

DATA = Path(os.environ.get("ISTHMUS_DATA", Path(__file__).parents[2] / "shared" / "data"))
_MEASURES = ("nDCG@10", "RR@10")
_SYSTEMS = ("bm25", "dense", "tokens", "bm25 + dense", "all three")
_DEEP = 100  # that tokens alone rank
_AT_ONCE = 256  # queries
_LEVEL = 0.05
Values = dict[str, dict[str, dict[str, float]]]  # by system, measure and query


def main() -> None:
    """Prints a table for each model and measure."""
    options = argparse.ArgumentParser()
    options.add_argument("models", nargs="+")
    options.add_argument("--collections", nargs="*")
    options.add_argument("--queries", type=int, default=1000)
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--values", type=Path)
    chosen = options.parse_args()
    sizes = {one.name: sum(f.stat().st_size for f in one.rglob("*")) for one in _collections()}
    names = chosen.collections or sorted(sizes)
    jobs = [(name, model) for name in names for model in chosen.models]
    jobs.sort(key=lambda job: -sizes[job[0]])  # the longest first
    found: dict[tuple[str, str], Values] = {}
    with ProcessPoolExecutor(chosen.jobs, get_context("spawn")) as pool:
        begun = {pool.submit(_measured, *job, chosen.queries): job for job in jobs}
        for done in as_completed(begun):
            found[begun[done]] = done.result()
            if chosen.values:
                kept = [[*job, values] for job, values in found.items()]
                chosen.values.write_text(json.dumps(kept))
    for model in chosen.models:
        for measure in _MEASURES:
            _print(Path(model).name, measure, {name: found[name, model] for name in names})


def _collections() -> list[Path]:
    return list((DATA / "collections").iterdir())


def _measured(name: str, model: str, most: int) -> Values:
    collection = str(DATA / "collections" / name)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "index")
        isthmus.index(collection, folder, model, language="english", settings={"problems": "skip"})
        source = isthmus.open_collection(collection)
        judged = source.judgements("test")
        queries = [query for query in source.queries() if query.id in judged]
        if len(queries) > most:
            queries = random.Random(0).sample(queries, most)
        judged = {query.id: judged[query.id] for query in queries}
        found: dict[str, dict[str, Ranking]] = {system: {} for system in _SYSTEMS}
        # Each field and each fusion as a search of it answers.
        for system, use, weights in (
            ("bm25", "bm25", {}),
            ("dense", "dense", {}),
            ("tokens", "tokens", {}),
            ("bm25 + dense", None, {"tokens": 0.0}),
            ("all three", None, {}),
        ):
            searcher = open_searcher(folder, use, fusion={"weights": weights})
            for first in range(0, len(queries), _AT_ONCE):
                part: Sequence[Query] = queries[first : first + _AT_ONCE]
                for ranking in searcher.search(part, _DEEP, Problems("skip")):
                    found[system][ranking.query_id] = ranking
    print(f"{name}, {Path(model).name}: {len(queries):,} queries", flush=True)
    return {
        system: per_query(Run(system, rankings), judged, _MEASURES)
        for system, rankings in found.items()
    }


def _print(model: str, measure: str, found: Mapping[str, Values]) -> None:
    print(f"\n| {model}, {measure} | queries | " + " | ".join(_SYSTEMS) + " |")
    print("|---|--:|" + "--:|" * len(_SYSTEMS))
    rows = []
    for name, values in found.items():
        means = [fmean(values[system][measure].values()) for system in _SYSTEMS]
        rows.append(means)
        count = len(values[_SYSTEMS[0]][measure])
        print(f"| {name} | {count:,} | " + " | ".join(f"{mean:.3f}" for mean in means) + " |")
    means = [fmean(column) for column in zip(*rows, strict=True)]
    print("| mean | | " + " | ".join(f"{mean:.4f}" for mean in means) + " |")
    for system, base in (("tokens", "dense"), ("all three", "bm25 + dense")):
        differences = {
            name: [
                values[system][measure][query] - value
                for query, value in values[base][measure].items()
            ]
            for name, values in found.items()
        }
        tests = holm([paired_t_test(one) for one in differences.values()])
        better = [n for (n, one), p in zip(differences.items(), tests, strict=True)
                  if p < _LEVEL and fmean(one) > 0]  # fmt: skip
        worse = [n for (n, one), p in zip(differences.items(), tests, strict=True)
                 if p < _LEVEL and fmean(one) < 0]  # fmt: skip
        print(f"{system} against {base}: significantly better on {', '.join(better) or 'none'}; "
              f"worse on {', '.join(worse) or 'none'}")  # fmt: skip


if __name__ == "__main__":
    main()
