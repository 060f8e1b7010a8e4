"""What the probes of pre-training measure of any checkpoint, without training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from isthmus.collections import Corpus, Problems, open_corpus
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.config.output import SNAPSHOT, claimed, finish, read_snapshot, writing
from isthmus.encoders.dense import DenseSettings
from isthmus.encoders.model_settings import known_settings
from isthmus.encoders.router import transformer_folder
from isthmus.encoders.sparse import SparseSettings
from isthmus.errors import InputError, SettingsError
from isthmus.evaluation.tables import Cell, Shown, Table
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.examples import PretrainExamples, check_texts
from isthmus.pretraining.parts import Vector
from isthmus.pretraining.probes import (
    FEWEST,
    HeldOut,
    Probe,
    Rows,
    applying,
    measure,
    own_numbers,
    split,
)
from isthmus.pretraining.recipe import Parts, assemble
from isthmus.pretraining.settings import MeasurementSettings, PretrainSettings
from isthmus.pretraining.task import PARTS_FILE, PretrainTask
from isthmus.pretraining.views import Same
from isthmus.progress import notice, track
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.tokenizer import Tokenizer


class _Report(Protocol):
    def tables(self) -> Iterable[str | Table]: ...

    def to_json(self) -> str: ...


T = TypeVar("T", bound=_Report)
_ARROWS = {"higher": "↑", "lower": "↓"}


class CheckpointSettings(MeasurementSettings, ReadingSettings):
    """What is measured of a checkpoint, and on which documents."""

    verb = "research probe"

    documents: int = Field(
        300,
        ge=1,
        description="maximum number of documents: those that a training of this seed holds out (a "
        "twentieth of the corpus), or any if the corpus is small",
    )
    vector: Literal["auto", "cls", "mean", "lexicon"] = Field(
        "auto", description="vector of a text; auto: the one that each model was trained for"
    )
    titles: bool = Field(True, description="whether titles are part of the text")
    max_length: int = Field(144, ge=8, description="tokens per text, special ones included")
    seed: int = Field(42, ge=0, description="draws the documents, and the spans of two texts")


class ProbeReport(Shown, BaseModel):
    """Probes of several checkpoints on the same documents; None where one has no such number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    corpus: str
    documents: int
    vectors: dict[str, str]
    """The vector of a text, by model."""
    better: dict[str, Literal["higher", "lower"]]
    """The direction of each probe."""
    values: dict[str, dict[str, float | None]]
    """By model: `PROBE`, the number to watch, and `PROBE/FURTHER`, others to read it by."""

    def tables(self) -> list[Table]:
        """One row per model, one column per probe; the best of several models marked."""
        columns = [f"{name} {_ARROWS[way]}" for name, way in self.better.items()]
        rows = [
            (
                Cell(model),
                Cell(self.vectors[model]),
                *(self._cell(model, name) for name in self.better),
            )
            for model in self.values
        ]
        caption = (
            f"Probes on {self.documents:,} documents of {self.corpus}, without training. "
            "↓: lower is better, ↑: higher."
        )
        return [Table(("model", "vector", *columns), tuple(rows), caption, names=2)]

    def _cell(self, model: str, name: str) -> Cell:
        value = self.values[model].get(name)
        if value is None:
            return Cell("–")
        seen = [found for of in self.values.values() if (found := of.get(name)) is not None]
        best = max(seen) if self.better[name] == "higher" else min(seen)
        return Cell(f"{value:.4f}", best=len(self.values) > 1 and value == best)

    def to_dict(self) -> dict[str, Any]:
        """Every number."""
        return self.model_dump()

    def to_json(self) -> str:
        """Every number, as a text."""
        return self.model_dump_json(indent=2)


def probe(
    models: Sequence[str] | str,
    *,
    documents: str,
    output: str | Path | None = None,
    settings: CheckpointSettings | Overrides = None,
) -> ProbeReport:
    """The masked-LM loss and the other probes of checkpoints, on the same held-out documents.

    Of a pre-training whose decoder is next to the encoder, the use of its bottleneck is measured
    too; of a model without a masked-LM head, only what needs none.
    """
    chosen = CheckpointSettings.given(settings)
    named = list(dict.fromkeys([models] if isinstance(models, str) else models))
    if not named:
        raise SettingsError("isthmus research probe: no model is named", "name one or more")
    folders = {name: model_folder(name, "MODEL") for name in named}
    applying(chosen, _parts_alone(), "measure")  # refuses unknown probes before anything loads
    texts = open_corpus(documents, chosen.account())
    measured = partial(_probed, folders, documents, texts, chosen)
    if output is None:
        return measured()
    identity = {
        "settings": chosen.model_dump(mode="json"),
        "models": {name: model_fingerprint(folder) or name for name, folder in folders.items()},
        "corpus": texts.fingerprint(),
    }
    return saved(measured, Path(output), "probe", identity)


def saved(found: Callable[[], T], output: Path, verb: str, identity: Mapping[str, Any]) -> T:
    """What is found, after it was written as report.json and table.md."""
    with claimed(output, verb, identity):
        report = found()
        with writing(output):
            tables = "\n".join(one.markdown() for one in report.tables() if isinstance(one, Table))
            (output / "report.json").write_text(f"{report.to_json()}\n", encoding="utf-8")
            (output / "table.md").write_text(tables, encoding="utf-8")
            finish(output)
    return report


def _probed(
    folders: Mapping[str, str], spec: str, texts: Corpus, settings: CheckpointSettings
) -> ProbeReport:
    rows: tuple[Rows, Rows] | None = None  # those of the first model, for all
    better: dict[str, Literal["higher", "lower"]] = {}
    vectors: dict[str, str] = {}
    values: dict[str, dict[str, float | None]] = {}
    tokenizers = set()
    for name, folder in track(folders.items(), "probe", total=len(folders), unit="models"):
        vectors[name] = _vector(name) if settings.vector == "auto" else settings.vector
        how = settings.model_copy(update={"vector": vectors[name]})
        task = _task(name, folder, how)
        tokenizers.add(task.tokenizer.serialised)
        probes = _probes(name, task, how)
        source = f"{texts.fingerprint()} {settings.kept}"
        tokenizer = task.tokenizer
        corpus = tokenise(texts.documents(), source, tokenizer.serialised, settings.titles)
        check_texts(corpus, spec)
        rows = rows or _measured_rows(corpus, settings)
        numbers = _measured(task, probes, spec, corpus, how, rows)
        for measured, one in probes.items():
            if remark := one.remark([own_numbers(numbers, measured)]):
                notice(f"{name}: {remark}")
        better |= {measured: one.better for measured, one in probes.items()}
        values[name] = {one: None if math.isnan(x) else x for one, x in numbers.items()}
    if len(tokenizers) > 1:
        notice(
            "the models have different tokenizers: only `retrieval` is comparable between them, "
            "losses per token and coverage are not"
        )
    assert rows is not None
    ordered = {name: better[name] for name in settings.measure if name in better}
    count = len(rows[1])
    return ProbeReport(corpus=spec, documents=count, vectors=vectors, better=ordered, values=values)


def _task(name: str, folder: str, settings: CheckpointSettings) -> PretrainTask:
    """The model as in a training, with the decoder that is next to it."""
    place = transformer_folder(folder)
    tokenizer, backbone = Tokenizer.load(place), Backbone.load(place)
    with named_at(name):
        backbone.check_length(settings.max_length, "max_length")
    parts = _trained_parts(name, Path(folder)) or _parts_alone()
    task = PretrainTask(backbone, tokenizer, parts, settings.seed)
    if parts.decoder is not None:
        task.restore(Path(folder))
    task.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return task


def _parts_alone() -> Parts:
    """The parts of a model that no recipe is known for: its texts, and nothing masked."""
    return Parts(Same(Same.Settings()), None, None, None, None, {})


def _trained_parts(name: str, folder: Path) -> Parts | None:
    """The parts of the pre-training that left its decoder in this folder; None: there is none."""
    run = folder.parent
    if not (folder / PARTS_FILE).is_file():
        return None
    snapshot = read_snapshot(run) if (run / SNAPSHOT).is_file() else {}
    values = snapshot.get("identity", {}).get("settings")
    if snapshot.get("verb") != "pretrain" or not isinstance(values, dict):
        notice(f"{name}: {PARTS_FILE} is not used; the run that it belongs to is not around it")
        return None
    where = str(run / SNAPSHOT)
    return assemble(PretrainSettings.parse({**values, "output": str(run)}, where=where))


def _vector(name: str) -> Vector:
    """The vector that a model is searched by, as far as probes know it."""
    known = None
    with suppress(InputError):  # pooled in a way that isthmus does not know
        known = known_settings(name)
    if isinstance(known, SparseSettings):
        return "lexicon"
    why = "it does not say how to pool"
    if isinstance(known, DenseSettings):
        if known.pooling in ("cls", "mean"):
            return known.pooling
        why = f"it pools by {known.pooling}"
    notice(f"{name}: {why}; its [CLS] is measured (--set vector=mean measures another)")
    return "cls"


def _probes(name: str, task: PretrainTask, settings: CheckpointSettings) -> dict[str, Probe]:
    """The probes that apply to a model."""
    probes = applying(settings, task.parts, "measure")
    if task.backbone.has_head:
        return probes
    if settings.vector == "lexicon":
        raise SettingsError(
            f"vector = lexicon, but {name!r} has no masked-LM head to weigh words with",
            "--set vector=cls or vector=mean, or name a model with a head",
        )
    probes = {one: probe for one, probe in probes.items() if not probe.uses_head}
    notice(f"{name} has no masked-LM head: measured is {', '.join(probes) or 'nothing'}")
    return probes


def _measured(
    task: PretrainTask,
    probes: Mapping[str, Probe],
    spec: str,
    corpus: TokenisedCorpus,
    settings: CheckpointSettings,
    rows: tuple[Rows, Rows],
) -> dict[str, float]:
    """The numbers of the probes on the second of these rows; the first are all others."""
    rest, chosen = rows
    columns = task.parts.columns(corpus, task.tokenizer)
    view, length, seed = task.parts.view, settings.max_length, settings.seed
    examples = PretrainExamples(corpus, view, task.tokenizer, length, seed, columns, rest)
    documents = open_corpus(spec, Problems("skip", settings.line_limit)).documents()
    with torch.no_grad():
        held_out = HeldOut(examples, chosen, documents, task, settings)
        for one in probes.values():
            one.prepare(task, held_out, decides=False)
        return measure(probes, task, held_out)


def _measured_rows(corpus: TokenisedCorpus, settings: CheckpointSettings) -> tuple[Rows, Rows]:
    """All other documents, and those that a training of this seed holds out; or all, if few."""
    rest, chosen = split(corpus, settings, settings.seed)
    if not len(chosen):
        whole = np.flatnonzero(corpus.lengths >= 2)
        places = np.linspace(0, len(whole) - 1, min(settings.documents, len(whole)))
        chosen = whole[np.unique(places.astype(np.int64))]
    if len(chosen) < FEWEST:
        notice(f"{len(chosen)} documents are few: differences between models are chance")
    return rest, chosen
