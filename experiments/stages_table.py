"""The tables of "stage by stage, three seeds", from the scores of each query."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from isthmus.evaluation import randomisation_tests

MEASURE = "RR@10"
SAMPLES = 100_000
Scores = dict[str, float]  # by query
Key = tuple[str, str, int, str]  # model, kind, stage, way


def print_tables(output: Path, collections: Sequence[str]) -> None:
    """Means over seeds with p-values against the stage before; then every seed."""
    lines = [json.loads(line) for line in (output / "results.jsonl").open(encoding="utf-8")]
    # Of models that were made anew, the last is what reports/ holds.
    latest = {(line["collection"], _key(line), line["seed"]): line for line in lines}
    lines = [line for line in latest.values() if line["collection"] in collections]
    keys = sorted({_key(line) for line in lines}, key=_order)
    found: dict[tuple[str, Key], list[dict[str, Any]]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: line["seed"]):
        found[line["collection"], _key(line)].append(line)
    scores = {place: _scores(output, seeds) for place, seeds in found.items()}
    articles = {name: _articles(output, name) for name in collections}
    rows = [["", *collections], ["---", *("---:" for _ in collections)]]
    for key in keys:
        cells = []
        for name in collections:
            seeds = found.get((name, key), [])
            tests = [
                f"{label}p {_p(scores[name, key], scores[name, other], articles[name])}"
                for label, other in _others(key)
                if (name, other) in scores and seeds
            ]
            told = f" ({', '.join(tests)})" if tests else ""
            cells.append(f"{_mean(seeds)}{told}" if seeds else "")
        rows.append([_label(key), *cells])
    _print(rows)
    print()
    header = ["collection", "model", "seed", MEASURE, "nDCG@10", "best step", "terms", "seconds"]
    rows = [header, ["---"] * len(header)]
    for name in collections:
        for key in keys:
            rows += [_seed(line) for line in found.get((name, key), [])]
    _print(rows)


def _others(key: Key) -> list[tuple[str, Key]]:
    """What a row is compared with: the stage before it and, of another way, the plain one."""
    model, kind, stage, way = key
    before = {"short": "short"}.get(way, "plain")
    others = [("", (model, kind, stage - 1, before))] if stage > 1 else []
    if way != "plain":
        others = [("before: ", other) for _, other in others]
        others.append(("plain: ", (model, kind, stage, "plain")))
    return [(label, other) for label, other in others if other[0] != "teacher"]


def _p(
    mine: Mapping[int, Scores], other: Mapping[int, Scores], articles: Mapping[str, str] | None
) -> str:
    """Paired, two-sided, of the mean of the seeds that both have.

    By random signs of queries, or of all queries about an article at once.
    """
    seeds = mine.keys() & other.keys()
    sums: dict[str, float] = defaultdict(float)
    for seed in seeds:
        assert mine[seed].keys() == other[seed].keys(), "not the same queries"
        for query, score in mine[seed].items():
            sums[query if articles is None else articles[query]] += score - other[seed][query]
    if not sums:
        return "of no common seed"
    (p,) = randomisation_tests([list(sums.values())], SAMPLES, seed=0)
    shown = "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
    return shown if sum(sums.values()) >= 0 else f"{shown}, worse"


def _scores(output: Path, lines: Iterable[Mapping[str, Any]]) -> dict[int, Scores]:
    """Each seed's score of each query."""
    of_seed: dict[int, Scores] = {}
    for line in lines:
        parts = ("collection", "model", "kind", "seed", "stage", "way")
        name = "-".join(str(line[part]) for part in parts)
        with (output / "reports" / name / "per_query.tsv").open(encoding="utf-8") as stream:
            rows = list(csv.reader(stream, delimiter="\t"))
        of_seed[line["seed"]] = {
            query: float(score) for measure, query, score in rows if measure == MEASURE
        }
    return of_seed


def _articles(output: Path, collection: str) -> dict[str, str] | None:
    file = output / "tests" / collection / "articles.json"
    if not file.is_file():
        return None
    articles: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return articles


def _key(line: Mapping[str, Any]) -> Key:
    return line["model"], line["kind"], line["stage"], line["way"]


def _order(key: Key) -> tuple[Any, ...]:
    models = ["bm25", "minilm", "bow", "teacher"]
    return models.index(key[0]), key[1], key[3] != "plain", key[3], key[2]


def _label(key: Key) -> str:
    model, kind, stage, way = key
    if model == "bm25":
        return "BM25 (k1 1.5, b .75)"
    if model == "teacher":
        return "the teacher, over the first 50 of MiniLM's stage 2"
    name = "MiniLM" if model == "minilm" else f"`bow`, {kind}"
    if stage == 0:
        return f"{name} as it is"
    return f"{name}, stage {stage}" + (f", {way}" if way != "plain" else "")


def _mean(lines: Sequence[Mapping[str, Any]]) -> str:
    values = [line[MEASURE] for line in lines]
    spread = f" ± {_short(stdev(values))}" if len(values) > 1 else ""
    return _short(fmean(values)) + spread


def _short(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}".removeprefix("0")


def _seed(line: Mapping[str, Any]) -> list[str]:
    sides = [line.get(f"terms/{side}") for side in ("documents", "queries")]
    terms = "" if None in sides else " / ".join(f"{count:.0f}" for count in sides)
    numbers = [_short(line[measure], 4) for measure in (MEASURE, "nDCG@10")]
    seconds = f"{line['seconds']:.0f}" if "seconds" in line else ""
    step = str(line.get("best_step", ""))
    return [
        line["collection"],
        _label(_key(line)),
        str(line["seed"]),
        *numbers,
        step,
        terms,
        seconds,
    ]


def _print(rows: Iterable[Sequence[str]]) -> None:
    for row in rows:
        print(f"| {' | '.join(row)} |")
