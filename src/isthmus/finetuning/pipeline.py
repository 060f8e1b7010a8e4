"""Stages as one job: what they share, what they refer to, and whether all of it can work."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from isthmus.collections import Collection, open_corpus
from isthmus.collections.files import fingerprint
from isthmus.collections.problems import ReadingSettings
from isthmus.config.models import model_folder, named_at
from isthmus.config.recipes import merged
from isthmus.errors import IsthmusError, SettingsError, choices
from isthmus.finetuning.development import development_split
from isthmus.finetuning.mining.candidates import CorpusIds
from isthmus.finetuning.registries import KINDS
from isthmus.finetuning.resolved import ResolvedStage, outside, references, resolve_stage
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.stage_data import check_split, stage_collection, training_queries
from isthmus.finetuning.teachers import INSTEAD
from isthmus.indexes.documents import blocks
from isthmus.nn.classifier import check_classifier
from isthmus.nn.pretrained import read_config
from isthmus.progress import Bar

_BLOCK = 4096
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Pipeline:
    """Stages in the order they run, each resolved; and the settings they were written as."""

    written: dict[str, Any]
    stages: dict[str, ResolvedStage]

    @property
    def output(self) -> Path:
        """The folder that holds the stages, and `final`."""
        return Path(self.written["output"])

    @property
    def last_retriever(self) -> str:
        """The stage whose model is the pipeline's: the last that is no re-ranker, if there is."""
        names = list(self.stages)
        retrievers = [name for name in names if self.stages[name].kind.retrieves]
        return (retrievers or names)[-1]


def assemble(values: Mapping[str, Any], where: str) -> Pipeline:
    """The pipeline that settings with `stages` spell, every stage of it resolved.

    What stands beside `stages` is common to all of them, as far as it means something to the
    stage's kind of encoder.
    """
    common = {key: value for key, value in values.items() if key != "stages"}
    everyone = FinetuneSettings.parse(common, where)  # one error for a mistake of all stages
    stages: dict[str, ResolvedStage] = {}
    chosen = _stages(values["stages"], where)
    for name, own in chosen.items():
        foreign = _foreign(everyone.encoder, own.get("encoder", everyone.encoder))
        meant = {key: value for key, value in common.items() if key not in foreign}
        place = f"{where}, stage {name}"
        settings = FinetuneSettings.parse(merged(meant, own), place, under=f"stages.{name}")
        with within(name):
            _check_references(name, settings, stages, list(chosen))
            if "model" not in references(settings):
                model_folder(settings.model, "model" if "model" in own else "--model")
            stages[name] = resolve_stage(settings)
    return Pipeline({**common, "stages": chosen}, stages)


def check_outside(pipeline: Pipeline) -> None:
    """Raises on splits, files and models that are missing, hours before a stage needs them.

    Only the configuration of models is read, except the first stage's own, which is loaded next.
    The ids in files are compared with those of the collection.
    """
    start = next(iter(pipeline.stages.values())).settings.model
    ids_of = cache(_ids)
    for name, stage in pipeline.stages.items():
        settings = stage.settings
        with within(name):
            collection = stage_collection(settings, settings.account())
            check_split(collection, settings)
            if settings.development is not None and settings.development.split is not None:
                development_split(settings.development, collection, settings.split)
            for path, named in outside(settings).items():
                if path.endswith("file"):
                    fingerprint([Path(named)])
                elif path == "teacher.model":
                    with named_at(path, INSTEAD):
                        check_classifier(model_folder(named, path))
                elif named != start:
                    with named_at(path):
                        read_config(model_folder(named, path))
            if any(path.endswith("file") for path in outside(settings)):
                _check_files(stage, collection, ids_of(settings.collection, settings.reading))


def _check_files(stage: ResolvedStage, collection: Collection, corpus: CorpusIds) -> None:
    problems = stage.settings.account()
    labelled, _ = training_queries(collection, stage.settings, corpus.rows, problems)
    for source in stage.sources:
        source.check(labelled.queries, corpus)
    if stage.teacher is not None:
        stage.teacher.check(labelled, corpus)


def _ids(spec: str, reading: ReadingSettings) -> CorpusIds:
    documents = open_corpus(spec, reading.account()).documents()
    rows: dict[str, int] = {}
    with Bar("read the ids of the corpus", unit="documents") as bar:
        for block in blocks(documents, _BLOCK):
            rows |= {document.id: row for row, document in enumerate(block, start=len(rows))}
            bar.advance(len(block))
    return CorpusIds(rows, reading)


def _stages(values: Any, where: str) -> dict[str, dict[str, Any]]:
    """The settings of each stage alone; null leaves out a stage that a recipe had."""
    if not isinstance(values, Mapping) or not any(own is not None for own in values.values()):
        raise SettingsError(
            f"{where}: stages = {values!r} holds no stage",
            "write 'stages: {first: {…}, second: {…}}', in the order they run, or leave stages out",
        )
    for name, own in values.items():
        at = f"stages.{name}"
        if not _NAME.fullmatch(str(name)):
            raise SettingsError(
                f"{where}: stages: a stage cannot be named {name!r}",
                "name it with letters, digits, - and _",
            )
        if own is not None and not isinstance(own, Mapping):
            raise SettingsError(
                f"{where}: {at} = {own!r} is not a mapping",
                "write the settings in which the stage differs as key: value, or --set "
                f"{at}.KEY=VALUE",
            )
        for key in ("stages", "output"):
            if key in (own or {}):
                raise SettingsError(
                    f"{where}: {at}.{key} cannot be set: it belongs to the whole pipeline",
                    f"write {key} next to 'stages:', not below it",
                )
    return {str(name): dict(own) for name, own in values.items() if own is not None}


def _foreign(usual: str, kind: str) -> tuple[str, ...]:
    """The common settings, meant for the usual kind of encoder, that a stage of a kind drops."""
    if kind == usual or kind not in KINDS.names():  # an unknown kind is refused with its settings
        return ()
    own = KINDS.load(kind)
    losses = ("losses", "teacher") if own.gives != KINDS.load(usual, "encoder").gives else ()
    return *own.foreign, *losses


def _check_references(
    name: str, settings: FinetuneSettings, earlier: Mapping[str, ResolvedStage], names: list[str]
) -> None:
    for path, stage in references(settings).items():
        # A stage may start from (its model) any kind.
        own = path.endswith(".retriever")
        retrieves = {"negatives": True, "teacher": own}.get(path.partition(".")[0])
        fit = [
            f"stage:{other}"
            for other in earlier
            if retrieves in (None, earlier[other].kind.retrieves)
        ]
        known = choices(f"stage:{stage}", fit)
        if stage not in earlier:
            reason = "is the stage itself" if stage == name else "comes later"
            raise SettingsError(
                f"{path} = 'stage:{stage}' {reason if stage in names else 'is no stage'}",
                "name an earlier stage, or a model",
                known,
            )
        if f"stage:{stage}" not in fit:
            kind = earlier[stage].settings.encoder
            what = "a retriever" if retrieves else "a re-ranker"
            raise SettingsError(
                f"{path} = 'stage:{stage}' is a {kind} encoder, not {what}",
                f"name a stage that trains {what}, or a model",
                known,
            )


@contextmanager
def within(name: str) -> Iterator[None]:
    """Adds the name of the stage to any error."""
    try:
        yield
    except IsthmusError as error:
        error.at(f"stage {name}")
        if isinstance(error, SettingsError):  # else the fix would be one for all stages
            error.fix = error.fix.replace("--set ", f"--set stages.{name}.")
        raise
