"""The verb `isthmus probe`: what pre-training's probes measure of any checkpoint, untrained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from isthmus.collections import Corpus, Problems, open_corpus
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.models import model_fingerprint, model_folder
from isthmus.config.output import SNAPSHOT, claimed, finish, read_snapshot, writing
from isthmus.encoders.model_settings import known_settings
from isthmus.encoders.router import transformer_folder
from isthmus.encoders.sparse import SparseSettings
from isthmus.errors import InputError, SettingsError
from isthmus.evaluation.tables import Cell, Shown, Table
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.examples import PretrainExamples, check_texts
from isthmus.pretraining.parts import Column, Vector
from isthmus.pretraining.probes._base import Probe, applying, measure, own_numbers
from isthmus.pretraining.probes._held_out import FEWEST, Rows, prepare_held_out, split
from isthmus.pretraining.recipe import Parts, assemble
from isthmus.pretraining.settings import MeasurementSettings, PretrainSettings
from isthmus.pretraining.task import PARTS_FILE, PretrainTask
from isthmus.pretraining.views.same import Same
from isthmus.progress import notice, track
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.tokenizer import Tokenizer

_ARROWS = {"higher": "↑", "lower": "↓"}


class CheckpointSettings(MeasurementSettings, ReadingSettings):
    """What is measured of a checkpoint, and on which documents."""

    verb = "probe"

    documents: int = Field(
        300,
        ge=1,
        description="those that a training of this seed holds out: at most a twentieth of the "
        "corpus; of a corpus too small for that, any",
    )
    vector: Literal["auto", "cls", "mean", "lexicon"] = Field(
        "auto", description="what stands for a text; auto: what each model was made for"
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
    """What stands for a text, by model."""
    better: dict[str, Literal["higher", "lower"]]
    """The direction of each probe."""
    values: dict[str, dict[str, float | None]]
    """By model: `PROBE`, the number to watch, and `PROBE/FURTHER`, others to read it by."""

    def table(self) -> Table:
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
        return Table(("model", "vector", *columns), tuple(rows), caption, names=2)

    def _cell(self, model: str, name: str) -> Cell:
        value = self.values[model].get(name)
        if value is None:
            return Cell("–")
        seen = [found for of in self.values.values() if (found := of.get(name)) is not None]
        best = max(seen) if self.better[name] == "higher" else min(seen)
        return Cell(f"{value:.4f}", best=len(self.values) > 1 and value == best)

    def tables(self) -> list[Table]:
        """The one table."""
        return [self.table()]

    def to_json(self) -> str:
        """Every number."""
        return self.model_dump_json(indent=2)


def probe(
    models: Sequence[str] | str,
    corpus: str,
    *,
    documents: int | None = None,
    output: str | Path | None = None,
    settings: CheckpointSettings | Overrides = None,
) -> ProbeReport:
    """The masked-LM loss and the other probes of checkpoints, side by side on the same documents.

    A checkpoint is whatever `pretrain --model` takes: a hub name, a folder, a run, one of its
    checkpoints. Of a pre-training whose decoder lies beside the encoder, the use of its bottleneck
    is measured too; of a model without a masked-LM head, only what needs none. With `output`, that
    folder holds report.json and table.md.
    """
    chosen = CheckpointSettings.given(settings, {"documents": documents})
    named = list(dict.fromkeys([models] if isinstance(models, str) else models))
    if not named:
        raise SettingsError(
            "isthmus probe: no model is named",
            "name a hub model, a folder, a run or a checkpoint: isthmus probe MODEL --corpus "
            "CORPUS",
        )
    folders = {name: model_folder(name) for name in named}
    applying(chosen, _parts_alone(), "measure")  # refuses unknown probes before anything loads
    texts = open_corpus(corpus, chosen.account())
    if output is None:
        return _probed(folders, corpus, texts, chosen)
    identity = {
        "settings": chosen.model_dump(mode="json"),
        "models": {name: model_fingerprint(folder) or name for name, folder in folders.items()},
        "corpus": texts.fingerprint(),
    }
    with claimed(Path(output), "probe", identity):
        report = _probed(folders, corpus, texts, chosen)
        with writing(Path(output)):
            (Path(output) / "report.json").write_text(f"{report.to_json()}\n", encoding="utf-8")
            (Path(output) / "table.md").write_text(report.table().markdown(), encoding="utf-8")
            finish(Path(output), {"documents": report.documents, "values": report.values})
    return report


def _probed(
    folders: Mapping[str, str], spec: str, texts: Corpus, settings: CheckpointSettings
) -> ProbeReport:
    rows: tuple[Rows, Rows] | None = None  # those of the first model, for all
    vectors: dict[str, str] = {}
    better: dict[str, Literal["higher", "lower"]] = {}
    values: dict[str, dict[str, float | None]] = {}
    tokenizers = set()
    for name, folder in track(folders.items(), "probe", total=len(folders), unit="models"):
        checkpoint = _load(name, folder, settings)
        tokenizers.add(checkpoint.task.tokenizer.serialised)
        rows, numbers = _measured(checkpoint, spec, texts, settings, rows)
        vectors[name] = checkpoint.vector
        better |= {one: probe.better for one, probe in checkpoint.probes.items()}
        values[name] = {one: None if math.isnan(x) else x for one, x in numbers.items()}
    if len(tokenizers) > 1:
        notice(
            "the models have different tokenizers: losses per token, and what a vector names, are "
            "not comparable between them; retrieval is"
        )
    assert rows is not None
    kept = [name for name in settings.measure if name in better]  # in the order of the settings
    return ProbeReport(
        corpus=spec,
        documents=len(rows[1]),
        vectors=vectors,
        better={name: better[name] for name in kept},
        values=values,
    )


class _Checkpoint(NamedTuple):
    name: str
    task: PretrainTask
    vector: Vector
    probes: dict[str, Probe]


def _load(name: str, folder: str, settings: CheckpointSettings) -> _Checkpoint:
    place = transformer_folder(folder)
    tokenizer, backbone = Tokenizer.load(place), Backbone.load(place)
    backbone.check_length(settings.max_length, "max_length")
    parts = _trained_parts(name, Path(folder)) or _parts_alone()
    vector = _vector(name) if settings.vector == "auto" else settings.vector
    probes = applying(settings, parts, "measure")
    if not backbone.has_head:
        if vector == "lexicon":
            raise SettingsError(
                f"vector = lexicon, but {name!r} has no masked-LM head to weigh words with",
                "--set vector=cls or vector=mean, or name a model with a head",
            )
        probes = {one: probe for one, probe in probes.items() if not probe.uses_head}
        notice(f"{name} has no masked-LM head: measured is {', '.join(probes) or 'nothing'}")
    task = PretrainTask(backbone, tokenizer, parts, settings.seed)
    if parts.decoder is not None:
        task.restore(Path(folder))
    task.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return _Checkpoint(name, task, vector, probes)


def _parts_alone() -> Parts:
    """The parts of a model that no recipe is known for: its texts, and nothing hidden."""
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
    """What a model is meant to be searched by, as far as probes can."""
    known = None
    with suppress(InputError):  # pooled in a way that isthmus does not know
        known = known_settings(name)
    if isinstance(known, SparseSettings):
        return "lexicon"
    if known is not None and known.pooling in ("cls", "mean"):
        return known.pooling
    said = "nothing beside it says how to pool" if known is None else f"it pools by {known.pooling}"
    notice(f"{name}: {said}; its [CLS] is measured (--set vector=mean measures another)")
    return "cls"


def _measured(
    checkpoint: _Checkpoint,
    spec: str,
    texts: Corpus,
    settings: CheckpointSettings,
    rows: tuple[Rows, Rows] | None,
) -> tuple[tuple[Rows, Rows], dict[str, float]]:
    """The documents, chosen here unless they are given, and the numbers on them."""
    name, task, vector, probes = checkpoint
    tokenizer, parts = task.tokenizer, task.parts
    source = f"{texts.fingerprint()} {settings.kept}"
    tokenised = tokenise(texts.documents(), source, tokenizer.serialised, settings.titles)
    check_texts(tokenised, spec)
    rest, chosen = rows = rows or measured_rows(tokenised, settings, settings.seed)
    columns: dict[str, Column] = {}
    for part in parts:
        columns |= part.columns(tokenised, tokenizer)
    examples = PretrainExamples(
        tokenised, parts.view, tokenizer, settings.max_length, settings.seed, columns, rest
    )
    again = open_corpus(spec, Problems("skip", settings.line_limit))
    how = settings.model_copy(update={"vector": vector})
    with torch.no_grad():
        held_out = prepare_held_out(examples, chosen, again.documents(), task, how)
        for one in probes.values():
            one.prepare(task, held_out, decides=False)
        values = measure(probes, task, held_out)
    for measured, probe in probes.items():
        if remark := probe.remark([own_numbers(values, measured)]):
            notice(f"{name}: {remark}")
    return rows, values


def measured_rows(
    corpus: TokenisedCorpus, settings: MeasurementSettings, seed: int
) -> tuple[Rows, Rows]:
    """All other documents, and those that a training of this seed holds out; or all, if few."""
    rest, chosen = split(corpus, settings, seed)
    if not len(chosen):
        whole = np.flatnonzero(corpus.lengths >= 2)
        places = np.linspace(0, len(whole) - 1, min(settings.documents, len(whole)))
        chosen = whole[np.unique(places.astype(np.int64))]
    if len(chosen) < FEWEST:
        notice(f"{len(chosen)} documents measure little: differences between models are chance")
    return rest, chosen
