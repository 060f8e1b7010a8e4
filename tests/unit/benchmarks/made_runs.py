"""Folders of runs whose truth is known: every score is a sum of effects and noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.benchmarks.protocol.runs import Cost, Result, Tested, write_result
from isthmus.benchmarks.protocol.settings import Protocol, write_protocol

COLLECTIONS = {"insurance": "one", "medicine": "two", "flights": "three"}
TASKS: dict[str, dict[str, Any]] = {
    "insurance-1000": {"collection": "insurance", "queries": 1000},
    "insurance-all": {"collection": "insurance"},
    "medicine-1000": {"collection": "medicine", "queries": 1000},
}


def protocol(
    methods: Sequence[str],
    retrievers: Sequence[str] = ("dense",),
    tasks: Mapping[str, dict[str, Any]] = TASKS,
    seeds: Sequence[int] = (1, 2, 3),
    **more: Any,
) -> Protocol:
    values: dict[str, Any] = {
        "base": {"model": "tiny"},
        "collections": {name: {"spec": spec} for name, spec in COLLECTIONS.items()},
        "methods": {
            name: {} if name == "none" else {"recipe": "mlm", "corpus": "insurance"}
            for name in methods
        },
        "retrievers": {kind: {"recipe": kind} for kind in retrievers},
        "tasks": {name: dict(task) for name, task in tasks.items()},
        "measures": ["RR@10"],
        "seeds": {"pretraining": list(seeds), "finetuning": [1]},
        **more,
    }
    return Protocol.parse(values, where="test")


def results(
    made: Protocol,
    gains: Mapping[str, float | Mapping[str, float]],
    queries: int = 200,
    seed_noise: float = 0.0,
    noise: float = 0.1,
    seed: int = 0,
) -> list[Result]:
    """A result for every run; `gains` are added to a method's scores, in all tasks or by task."""
    generator = np.random.default_rng(seed)
    names = [f"q{number}" for number in range(queries)]
    level = {name: generator.uniform(0.2, 0.6, queries) for name in made.collections}
    found = []
    for run in made.runs():
        gain = gains.get(run.method, 0.0)
        gain = gain if isinstance(gain, float) else gain.get(run.task, 0.0)
        shift = gain + seed_noise * generator.normal()
        tests = {}
        for other in dict.fromkeys((made.tasks[run.task].collection, *made.zero_shot)):
            own = shift + noise * generator.normal(size=queries)
            scores = dict(zip(names, (level[other] + own).tolist(), strict=True))
            mean = float(np.mean(list(scores.values())))
            per_query = dict.fromkeys(made.measures, scores)
            tests[other] = Tested(measures=dict.fromkeys(made.measures, mean), per_query=per_query)
        found.append(Result(run=run, tests=tests, settings="digest"))
    return found


def with_cost(result: Result, **cost: float) -> Result:
    return result.model_copy(update={"cost": Cost(**cost)})


def write(folder: Path, made: Protocol, done: Sequence[Result], name: str = "made") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_protocol(folder, made, name)
    for result in done:
        write_result(folder, result)
    return folder
