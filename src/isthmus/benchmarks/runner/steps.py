"""One step of a benchmark, done in this process: a model that cells share, or a cell.

A model appears under its name only when it is whole, a cell's file likewise: whatever is killed is
done again, and whatever is there counts.
"""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from isthmus.benchmarks.protocol.cells import CellResult, Cost, write_result
from isthmus.benchmarks.protocol.plan import Step
from isthmus.benchmarks.runner.cell_evaluation import tests_of
from isthmus.collections import Problems, open_corpus
from isthmus.config import Settings
from isthmus.config.models import model_fingerprint
from isthmus.config.output import environment, whole_file, whole_folder, write_json
from isthmus.config.sealed_json import UnreadableError, read_mapping
from isthmus.errors import SettingsError

MODELS = "models"
RECORD = "benchmark.json"
"""The file that says of what a finished model of the benchmark was made, and what it took."""
WORK = "work"  # what is unfinished
_WEIGHTS = "model.safetensors"
Values = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """The folder of a benchmark, and what its steps are called there."""

    folder: Path
    folders: Mapping[str, str]  # of models, by step
    texts: tuple[str, ...] = ()  # specs of what the base is trained on
    paragraph: int = 0
    keep: bool = False

    def model(self, name: str) -> Path:
        """Where the model of a step lies, finished or not yet there."""
        return self.folder / MODELS / self.folders[name]

    def work(self, step: Step) -> Path:
        """Where a step keeps what is unfinished."""
        return self.folder / WORK / step.folder

    def checkpoint(self, name: str) -> str:
        """The model of a step, or the checkpoint of this name itself."""
        return str(self.model(name)) if name in self.folders else name

    def record(self, name: str) -> Values:
        """What was written down about the model of a step; nothing for a checkpoint."""
        if name not in self.folders:
            return {}
        return read_mapping(self.model(name) / RECORD)

    def has(self, step: Step) -> bool:
        """Whether the model of a step is whole, and is this very step's."""
        folder = self.model(step.name)
        try:
            record = _Record.parse(self.record(step.name), where=str(folder / RECORD))
        except (UnreadableError, SettingsError):
            return False
        sizes = {file: _size(folder / file) for file in record.files}
        return record.digest == step.digest and sizes == record.files


class _Record(Settings):
    """What is written down about the model of a step."""

    digest: str
    seconds: float = Field(ge=0)
    tokens: float = 0.0
    origin: str | None = None
    probes: dict[str, float] = Field({})
    probes_before: dict[str, float] = Field({})
    files: dict[str, int] = Field(description="bytes of each file next to the record")


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else -1


def run_step(step: Step, place: Place) -> float:
    """Does a step, unless its result is there; returns the seconds it took."""
    began = time.monotonic()
    if step.work == "cell":
        _cell(step, place)
    elif not place.has(step):
        {"base": _base, "pretrain": _pretrain, "teacher": _teacher}[step.work](step, place)
    _release_memory()
    return time.monotonic() - began


def _release_memory() -> None:
    """Returns the memory of a step's models to the other processes on the same device."""
    import torch

    gc.collect()  # a trainer is part of a cycle
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _base(step: Step, place: Place) -> None:
    texts = place.work(step).with_suffix(".jsonl")
    texts.parent.mkdir(parents=True, exist_ok=True)
    if not texts.is_file():
        with whole_file(texts) as stream:
            for text in paragraphs(place.texts, place.paragraph):
                stream.write(json.dumps(text, ensure_ascii=False) + "\n")
    _train(step, place, {**step.values, "corpus": f"jsonl:{texts}"}, {})
    texts.unlink(missing_ok=True)


def _pretrain(step: Step, place: Place) -> None:
    origin = {"origin": _origin(step.start, place)}
    _train(step, place, {**step.values, "model": place.checkpoint(step.start)}, origin)


def _train(step: Step, place: Place, values: Values, told: Values) -> None:
    from isthmus.pretraining.pretrain import run
    from isthmus.pretraining.settings import PretrainSettings

    output = place.work(step)
    began = time.monotonic()
    final = run(PretrainSettings.parse({**values, "output": str(output)}, where=step.name))
    log = read_mapping(output / "isthmus.json")["results"].get("log", [])
    record = {
        **told,
        "digest": step.digest,
        "tokens": step.tokens,
        "seconds": time.monotonic() - began + _seconds_before(step, place),
        "probes": _probes(log),
        "probes_before": _probes(reversed(log)),
    }
    _publish(final, place.model(step.name), record, halved=step.work == "base")
    shutil.rmtree(output)


def _origin(start: str, place: Place) -> str | None:
    """A digest of the weights at the beginning of a start's chain; None for a hub name."""
    record, own = place.record(start), model_fingerprint(place.checkpoint(start))
    origin: str | None = record.get("origin", own)
    return origin


def _seconds_before(step: Step, place: Place) -> float:
    """What the pre-training took that a step goes on from; the base is common to all."""
    chained = step.work == "pretrain" and step.start != "base"
    seconds: float = place.record(step.start).get("seconds", 0.0) if chained else 0.0
    return seconds


def _probes(lines: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The value of every probe in lines of the log of a pre-training; later lines win."""
    found: dict[str, float] = {}
    for line in lines:
        values = {name: value for name, value in line.items() if name.startswith("probe/")}
        found |= {name.removeprefix("probe/"): value for name, value in values.items()}
    return found


def _teacher(step: Step, place: Place) -> None:
    output = place.work(step)
    began = time.monotonic()
    final = _finetune(step, place, output)
    record = {"digest": step.digest, "seconds": time.monotonic() - began}
    _publish(final, place.model(step.name), record)
    shutil.rmtree(output)


def _finetune(step: Step, place: Place, output: Path) -> Path:
    from isthmus.finetuning.finetune import run

    values = {**step.values, "model": place.checkpoint(step.start), "output": str(output)}
    if step.teacher:
        values["teacher"] = {**values["teacher"], "model": place.checkpoint(step.teacher)}
    return run(values, where=step.name)


def _cell(step: Step, place: Place) -> None:
    assert step.cell is not None
    output = place.work(step)
    cost: dict[str, float] = {"pretraining_seconds": 0.0, "pretraining_tokens": step.tokens}
    record = place.record(step.start) if step.start != "base" else {}
    if record:
        cost["pretraining_seconds"] = record["seconds"]
    if step.values:
        began = time.monotonic()
        model = str(_finetune(step, place, output))
        cost["finetuning_seconds"] = time.monotonic() - began
    else:
        model = place.checkpoint(step.start)
    tests, spent = tests_of(model, step, output.with_name(f"{output.name}.index"))
    result = CellResult(
        cell=step.cell,
        status="done",
        tests=tests,
        cost=Cost(**cost, **spent),
        probes=record.get("probes", {}),
        probes_before=record.get("probes_before", {}),
        settings=step.digest,
        parts=dict(step.parts),
        origin=_origin(step.start, place),
        machine=machine(),
    )
    write_result(place.folder, result)
    if place.keep and step.values:
        _publish(Path(model), place.folder / MODELS / step.folder, {"digest": step.digest})
    shutil.rmtree(output, ignore_errors=True)


@cache
def machine() -> dict[str, Any]:
    """What results may depend on besides settings and data; the accelerator too."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {**environment(), "accelerator": gpu}


def _publish(model: Path, folder: Path, record: Mapping[str, Any], halved: bool = False) -> None:
    """Copies a model to its name, with what is to be known about it; a record marks it as whole.

    In half the precision it is small enough to travel; it is what all starts begin with from then
    on, wherever they are run.
    """
    with whole_folder(folder) as partial:
        shutil.copytree(model, partial, dirs_exist_ok=True)
        if halved:
            _halve(partial / _WEIGHTS)
        files = sorted(file for file in partial.rglob("*") if file.is_file())
        sizes = {file.relative_to(partial).as_posix(): _size(file) for file in files}
        write_json(partial / RECORD, {**record, "files": sizes})


def _halve(file: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    floats = {n: w.half() if w.dtype == torch.float32 else w for n, w in weights.items()}
    save_file(floats, file, metadata={"format": "pt"})


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
