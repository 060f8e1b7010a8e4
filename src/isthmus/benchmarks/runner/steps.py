"""One step of a benchmark, done in this process: a model that runs share, or a run.

A model appears under its name only when it is whole, the file of a run likewise: whatever is killed
is done again, and whatever is there counts.
"""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.benchmarks.protocol.plan import Plan, Step, Values
from isthmus.benchmarks.protocol.runs import Cost, Result, write_result
from isthmus.benchmarks.protocol.settings import Protocol
from isthmus.benchmarks.runner.evaluate import evaluate
from isthmus.collections import Problems, open_corpus
from isthmus.config.output import environment, whole_file, whole_folder, write_json
from isthmus.config.sealed_json import UnreadableError, read_mapping

MODELS = "models"
WORK = "work"  # what is unfinished
_RECORD = "benchmark.json"  # of what a finished model was made, and what it took


@dataclass(frozen=True)
class RunFolder:
    """The folder of a benchmark, and what its steps are called there."""

    folder: Path
    protocol: Protocol
    models: Mapping[str, str]  # names of folders, by step

    @classmethod
    def of(cls, plan: Plan, folder: Path) -> RunFolder:
        """The folder of a plan's results."""
        models = {step.name: step.folder for step in plan.steps.values() if step.run is None}
        return cls(folder.absolute(), plan.protocol, models)

    def model(self, name: str) -> Path:
        """Where the model of a step is, finished or not yet there."""
        return self.folder / MODELS / self.models[name]

    def work(self, step: Step) -> Path:
        """Where a step keeps what is unfinished."""
        return self.folder / WORK / step.folder

    def checkpoint(self, name: str) -> str:
        """The model of a step, or the checkpoint of this name itself."""
        return str(self.model(name)) if name in self.models else name

    def record(self, name: str) -> Values:
        """What was written down about the model of a step; nothing for a checkpoint."""
        try:
            return read_mapping(self.model(name) / _RECORD) if name in self.models else {}
        except UnreadableError:
            return {}

    def has(self, step: Step) -> bool:
        """Whether the model of a step is there, and is this very step's."""
        return self.record(step.name).get("digest") == step.digest

    def remove(self, name: str) -> None:
        """Removes the model of a step, and what its work left if it was killed at the end."""
        for parent in (MODELS, WORK):
            shutil.rmtree(self.folder / parent / self.models[name], ignore_errors=True)


def do_step(step: Step, place: RunFolder) -> None:
    """Does a step, unless its model is there."""
    if step.work == "run":
        _run(step, place)
    elif not place.has(step):
        {"base": _base, "pretrain": _pretrain, "teacher": _teacher}[step.work](step, place)
    _release_memory()


def _release_memory() -> None:
    """Returns the memory of a step's models to the other processes on the same device."""
    import torch

    gc.collect()  # a trainer is part of a cycle
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _base(step: Step, place: RunFolder) -> None:
    texts = place.work(step).with_suffix(".jsonl")
    texts.parent.mkdir(parents=True, exist_ok=True)
    if not texts.is_file():
        with whole_file(texts) as stream:
            specs = map(place.protocol.spec, place.protocol.base.texts)
            for text in paragraphs(specs, place.protocol.base.paragraph):
                stream.write(json.dumps(text, ensure_ascii=False) + "\n")
    _train(step, place, {"documents": f"jsonl:{texts}"})
    texts.unlink(missing_ok=True)


def _pretrain(step: Step, place: RunFolder) -> None:
    _train(step, place, {"model": place.checkpoint(step.model)})


def _train(step: Step, place: RunFolder, values: Values) -> None:
    from isthmus.pretraining.pretrain import run
    from isthmus.pretraining.settings import PretrainSettings

    output, began = place.work(step), time.monotonic()
    given = {**step.values, **values, "output": str(output)}
    final = run(PretrainSettings.parse(given, where=step.name))
    seconds = time.monotonic() - began
    if step.model != "base":  # which is common to all
        seconds += place.record(step.model).get("seconds", 0.0)
    _publish(final, place, step, {"seconds": seconds})


def _teacher(step: Step, place: RunFolder) -> None:
    _publish(_finetune(step, place), place, step, {})


def _finetune(step: Step, place: RunFolder) -> Path:
    from isthmus.finetuning.pipeline import run
    from isthmus.finetuning.stages import assemble

    values = {
        **step.values,
        "model": place.checkpoint(step.model),
        "output": str(place.work(step)),
    }
    if step.teacher:
        values["teacher"] = {**values["teacher"], "model": place.checkpoint(step.teacher)}
    return run(assemble(values, step.name))


def _run(step: Step, place: RunFolder) -> None:
    assert step.run is not None
    record = place.record(step.model) if step.model != "base" else {}
    cost: dict[str, float] = {
        "pretraining_seconds": record.get("seconds", 0.0),
        "pretraining_tokens": step.tokens,
    }
    model = place.checkpoint(step.model)
    if step.values:
        began = time.monotonic()
        model = str(_finetune(step, place))
        cost["finetuning_seconds"] = time.monotonic() - began
    work = place.work(step)
    tests, spent = evaluate(model, step, place.protocol, work.with_name(f"{work.name}.index"))
    result = Result(
        run=step.run,
        tests=tests,
        cost=Cost(**cost, **spent),
        settings=step.digest,
        parts=dict(step.parts),
        machine=environment(),
    )
    write_result(place.folder, result)
    if place.protocol.keep and step.values:
        shutil.copytree(model, place.folder / MODELS / step.folder, dirs_exist_ok=True)
    shutil.rmtree(work, ignore_errors=True)


def _publish(model: Path, place: RunFolder, step: Step, record: Mapping[str, Any]) -> None:
    """Copies a model to its name, with what is to be known about it; removes the work."""
    with whole_folder(place.model(step.name)) as partial:
        shutil.copytree(model, partial, dirs_exist_ok=True)
        write_json(partial / _RECORD, {"digest": step.digest, **record})
    shutil.rmtree(place.work(step))


def paragraphs(specs: Iterable[str], enough: int) -> Iterator[dict[str, str]]:
    """The paragraphs of all documents; short ones are joined with those that follow."""
    for number, spec in enumerate(specs):
        for document in open_corpus(spec, Problems("skip")).documents():
            text, place = "", 0
            for paragraph in (*document.text.split("\n\n"), None):
                if paragraph is not None:
                    text = f"{text}\n{paragraph.strip()}".strip()
                if text and (paragraph is None or len(text) >= enough):
                    yield {"_id": f"{number}-{document.id}-{place}", "text": text}
                    text, place = "", place + 1
