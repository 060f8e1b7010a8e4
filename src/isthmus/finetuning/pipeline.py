"""Stages as one job: what they share, what they refer to, and whether all of it can work."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from isthmus.collections import Collection, open_collection
from isthmus.collections.files import fingerprint
from isthmus.collections.settings import ReadingSettings
from isthmus.config.models import model_folder, named_at
from isthmus.config.recipes import merged
from isthmus.errors import IsthmusError, SettingsError, choices
from isthmus.finetuning.development_set import development_split
from isthmus.finetuning.mining.candidates import CorpusIds
from isthmus.finetuning.negatives._base import negative_sources
from isthmus.finetuning.references import outside, references
from isthmus.finetuning.run_stage import check, check_split, training_queries
from isthmus.finetuning.settings import FOREIGN, FinetuneSettings
from isthmus.finetuning.teachers._base import INSTEAD, teacher_source
from isthmus.indexes.documents import blocks
from isthmus.nn.classifier import check_classifier
from isthmus.nn.pretrained import read_config
from isthmus.progress import Bar

_BLOCK = 4096
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Pipeline:
    """Stages in the order they run, each with all its settings; and what they were written as."""

    written: dict[str, Any]
    stages: dict[str, FinetuneSettings]

    @property
    def output(self) -> Path:
        """The folder that holds the stages, and `final`."""
        return Path(self.written["output"])

    @property
    def last_retriever(self) -> str:
        """The stage whose model is the pipeline's: the last that is no re-ranker, if there is."""
        names = list(self.stages)
        retrievers = [name for name in names if self.stages[name].encoder != "cross"]
        return (retrievers or names)[-1]


def assemble(values: Mapping[str, Any], where: str) -> Pipeline:
    """The pipeline that settings with `stages` spell; every stage of it is checked.

    What stands beside `stages` is common to all of them, as far as it means something to the
    stage's kind of encoder.
    """
    common = {key: value for key, value in values.items() if key != "stages"}
    everyone = FinetuneSettings.parse(common, where)  # a mistake of all stages is told as one
    stages: dict[str, FinetuneSettings] = {}
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
            check(settings)
        stages[name] = settings
    return Pipeline({**common, "stages": chosen}, stages)


def check_outside(pipeline: Pipeline) -> None:
    """Refuses splits, files and models that are not there, hours before a stage asks for them.

    Of models no more than the configuration is read; of the first stage's own, not even that: it
    is loaded at once. The ids in files are held against those of the collection.
    """
    start = next(iter(pipeline.stages.values())).model
    ids_of = cache(_ids)
    for name, settings in pipeline.stages.items():
        with within(name):
            collection = open_collection(settings.collection, settings.account())
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
                _check_files(settings, collection, ids_of(settings.collection, settings.reading))


def _check_files(settings: FinetuneSettings, collection: Collection, corpus: CorpusIds) -> None:
    problems = settings.account()
    labelled, _ = training_queries(collection, settings, corpus.rows, problems)
    teaching = teacher_source(settings.teacher)
    for source in negative_sources(settings.negatives, teacher=teaching is not None):
        source.check(labelled.queries, corpus)
    if teaching is not None:
        teaching.check(labelled, corpus)


def _ids(spec: str, reading: ReadingSettings) -> CorpusIds:
    documents = open_collection(spec, reading.account()).documents()
    rows: dict[str, int] = {}
    with Bar("read the ids of the corpus", unit="documents") as bar:
        for block in blocks(documents, _BLOCK):
            rows |= {document.id: row for row, document in enumerate(block, start=len(rows))}
            bar.advance(len(block))
    return CorpusIds(rows, reading)


def _stages(values: Any, where: str) -> dict[str, dict[str, Any]]:
    """The settings of each stage's own; null leaves out a stage that a recipe had."""
    if not isinstance(values, Mapping) or not any(own is not None for own in values.values()):
        raise SettingsError(
            f"stages = {values!r} holds no stage",
            where=f"{where}: stages",
            allowed="a mapping of names to the settings of each stage, in the order they run",
            remedy="write 'stages: {first: {…}, second: {…}}', or leave stages out",
        )
    for name, own in values.items():
        at = f"stages.{name}"
        if not _NAME.fullmatch(str(name)):
            raise SettingsError(
                f"a stage cannot be called {name!r}",
                where=f"{where}: stages",
                allowed="letters, digits, - and _, for it names a folder and stands in --set paths",
                remedy="give the stage another name",
            )
        if own is not None and not isinstance(own, Mapping):
            raise SettingsError(
                f"{at} = {own!r} is not a mapping",
                where=f"{where}: {at}",
                allowed="what the stage does not share with all others, as key: value; or {}",
                remedy=f"correct the recipe, or --set {at}.KEY=VALUE",
            )
        for key in ("stages", "output"):
            if key in (own or {}):
                raise SettingsError(
                    f"{at}.{key} cannot be set: it belongs to the whole pipeline",
                    where=f"{where}: {at}.{key}",
                    allowed="settings of one stage",
                    remedy=f"write {key} beside 'stages:', not below it",
                )
    return {str(name): dict(own) for name, own in values.items() if own is not None}


def _foreign(usual: str, kind: str) -> tuple[str, ...]:
    """Which common settings, meant for the usual kind of encoder, a stage of its own kind lacks."""
    if kind == usual:
        return ()
    losses = ("losses", "teacher") if "cross" in (kind, usual) else ()
    return *FOREIGN.get(kind, ()), *losses


def _check_references(
    name: str, settings: FinetuneSettings, earlier: Mapping[str, FinetuneSettings], names: list[str]
) -> None:
    for path, stage in references(settings).items():
        # Where a stage starts from (its model), any kind will do.
        wanted = {"negatives": False, "teacher": True}.get(path.partition(".")[0])
        fit = [
            f"stage:{other}"
            for other in earlier
            if wanted in (None, earlier[other].encoder == "cross")
        ]
        allowed = choices(f"stage:{stage}", fit)
        if stage not in earlier:
            reason = "is the stage itself" if stage == name else "comes later"
            raise SettingsError(
                f"{path} = 'stage:{stage}' {reason if stage in names else 'is no stage'}",
                where=path,
                allowed=allowed,
                remedy="refer to a stage that stands before this one, or name a model",
            )
        if f"stage:{stage}" not in fit:
            what = "a re-ranker" if wanted else "a retriever"
            raise SettingsError(
                f"{path} = 'stage:{stage}' is a {earlier[stage].encoder} encoder, not {what}",
                where=path,
                allowed=allowed,
                remedy=f"refer to a stage that trains {what}, or name a model",
            )


@contextmanager
def within(name: str) -> Iterator[None]:
    """Adds to whatever is refused which stage it was."""
    try:
        yield
    except IsthmusError as error:
        error.where = f"stage {name}: {error.where}"
        if isinstance(error, SettingsError):  # else the remedy would be one for all stages
            error.remedy = error.remedy.replace("--set ", f"--set stages.{name}.")
        raise
