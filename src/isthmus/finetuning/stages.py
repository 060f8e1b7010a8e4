"""Stages: the parts that their settings name, what they refer to, and whether all can work."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import xxhash

from isthmus.collections import Collection, open_corpus
from isthmus.collections.files import fingerprint
from isthmus.collections.problems import ReadingSettings
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.config.output import may_change_results
from isthmus.config.recipes import merged
from isthmus.errors import IsthmusError, SettingsError, choices
from isthmus.finetuning.candidates import CorpusIds
from isthmus.finetuning.development import check_development, development_split
from isthmus.finetuning.kinds import Kind
from isthmus.finetuning.losses import Loss, losses, losses_with
from isthmus.finetuning.negatives import Source, negative_sources
from isthmus.finetuning.registries import KINDS
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.teachers import INSTEAD, TeacherSource, teacher_source
from isthmus.finetuning.training_collection import (
    check_split,
    stage_collection,
    training_queries,
)
from isthmus.indexes.documents import blocks
from isthmus.nn.classifier import check_classifier
from isthmus.nn.loading import read_config
from isthmus.progress import Bar
from isthmus.training.trainer import check_trackers

_BLOCK = 4096
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_PREFIX = "stage:"


@dataclass(frozen=True)
class Stage:
    """One stage: its settings, and every part that they name."""

    written: FinetuneSettings  # `stage:NAME` stands where an earlier stage is referred to
    settings: FinetuneSettings  # with the folders of earlier stages in their place
    earlier: Mapping[str, Path]
    output: Path
    kind: Kind
    sources: tuple[Source, ...]
    losses: tuple[Loss, ...]
    teacher: TeacherSource | None

    @property
    def group(self) -> int:
        """The passages of a query: one positive and the negatives of every source."""
        negatives: list[int] = [source.settings.num_negatives for source in self.sources]
        return 1 + sum(negatives)

    @property
    def distils(self) -> bool:
        """Whether a loss learns from the teacher's scores."""
        return any("teacher" in loss.needs for loss in self.losses)

    def after(self, earlier: Mapping[str, Path]) -> Stage:
        """The stage with the folders of earlier ones in the place of their names."""
        return resolve_stage(self.written, earlier) if references(self.written) else self

    def identity(self, collection: str) -> dict[str, Any]:
        """What makes two runs of a stage the same: settings, stages they refer to, and the data.

        `collection` is the fingerprint of the collection. The output, and the paths of stages, are
        no part of it: folders may move, and be named in several ways.
        """
        referred = sorted(set(references(self.written).values()))
        stages = {stage: self.earlier[stage].name for stage in referred}
        return {
            "settings": self.written.model_dump(exclude={"output"}),
            **({"stages": stages} if referred else {}),
            "data": self._data(collection),
        }

    def digest(self) -> str:
        """Eight hexadecimal digits of what may change the stage's result."""
        identity = may_change_results(self.identity(self._collection().fingerprint()))
        return xxhash.xxh3_64_hexdigest(json.dumps(identity, sort_keys=True).encode())[:8]

    def outside(self) -> dict[str, Any]:
        """Fingerprints of what the stage reads, but for what other stages make, by setting."""
        made = {path.partition(".")[0] for path in references(self.written)}
        return self._data(self._collection().fingerprint(), made)

    def _collection(self) -> Collection:
        return stage_collection(self.settings, self.settings.account())

    def _data(self, collection: str, made: Container[str] = ()) -> dict[str, Any]:
        data: dict[str, Any] = {"collection": collection}
        if "model" not in made:
            name = model_folder(self.settings.model)
            data["model"] = model_fingerprint(name) or name
        if "negatives" not in made and any(origins := [one.origin() for one in self.sources]):
            data["negatives"] = origins
        if "teacher" not in made and self.teacher is not None:
            data["teacher"] = self.teacher.origin()
        return data


def resolve_stage(written: FinetuneSettings, earlier: Mapping[str, Path] | None = None) -> Stage:
    """The parts that settings name; raises on what cannot work, before data or weights are read.

    `earlier` are the folders of earlier stages. None: of a pipeline that has not run yet, whose
    references to stages are left as they are.
    """
    if not written.losses:  # written down, as all that a run is repeated with
        usual = KINDS.load(written.encoder, "encoder").usual_loss
        written = written.model_copy(update={"losses": {usual: {}}})
    settings = written if earlier is None else with_folders(written, earlier)
    sources = tuple(negative_sources(settings.negatives, teacher=settings.teacher is not None))
    _check_foreign(settings)
    kind: Kind = KINDS.load(settings.encoder)(settings.model_dump())
    teacher = teacher_source(settings.teacher)
    given = {*kind.gives, *(["group"] if sources else []), *(["teacher"] if teacher else [])}
    chosen = tuple(losses(settings.losses, given))
    output = Path(written.output)
    stage = Stage(written, settings, earlier or {}, output, kind, sources, chosen, teacher)
    _check_teacher(stage)
    check_development(settings.development, kind.retrieves)
    check_trackers(settings.training)
    return stage


def _check_foreign(settings: FinetuneSettings) -> None:
    """Raises on settings that have no effect on an encoder of the chosen kind."""
    for key in KINDS.load(settings.encoder, "encoder").foreign:
        value, default = getattr(settings, key), FinetuneSettings.model_fields[key].default
        if value != default:
            shown = settings.model_dump(exclude_defaults=True)[key]
            others = [kind for kind in KINDS.names() if key not in KINDS.load(kind).foreign]
            raise SettingsError(
                f"{key} = {shown!r} has no effect on a {settings.encoder} encoder",
                f"--set encoder={others[0]}, or leave {key} out",
            )


def _check_teacher(stage: Stage) -> None:
    """Raises if no loss and no source of negatives uses the teacher."""
    margins = any(source.settings.margin_by == "teacher" for source in stage.sources)
    if stage.teacher is not None and not stage.distils and not margins:
        raise SettingsError(
            f"teacher = {stage.settings.teacher!r} is not used: no loss learns from it, and no "
            "negatives are chosen by it",
            f"leave the teacher out, set one of the losses {', '.join(losses_with('teacher'))} "
            "(--set losses.kl.weight=1.0) or negatives.margin_by=teacher",
        )


def references(settings: FinetuneSettings) -> dict[str, str]:
    """The stages that settings refer to, by the path at which each is named."""
    return {
        path: text.removeprefix(_PREFIX)
        for path, text in _walk(settings.model_dump())
        if text.startswith(_PREFIX)
    }


def outside(settings: FinetuneSettings) -> dict[str, str]:
    """The models and files in settings that come from outside the pipeline, by path."""
    return {
        path: text
        for path, text in _walk(settings.model_dump())
        if path.rpartition(".")[2] in ("model", "retriever", "file")
        and not text.startswith(_PREFIX)
    }


def with_folders(settings: FinetuneSettings, folders: Mapping[str, Path]) -> FinetuneSettings:
    """The settings with the folder of each stage in the place of its name."""
    for path, name in references(settings).items():
        if name not in folders:
            raise SettingsError(
                f"{path} = '{_PREFIX}{name}' is no stage of this run",
                "name a model, or use a recipe of several stages (`isthmus recipes`)",
            )
    return FinetuneSettings.parse(_replaced(settings.model_dump(), folders), where="stages")


def _walk(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the path and value of every string in settings."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _walk(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _walk(inner, f"{path}.{number}")


def _replaced(value: Any, folders: Mapping[str, Path]) -> Any:
    if isinstance(value, str) and value.startswith(_PREFIX):
        return str(folders[value.removeprefix(_PREFIX)])
    if isinstance(value, dict):
        return {key: _replaced(inner, folders) for key, inner in value.items()}
    return [_replaced(inner, folders) for inner in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Pipeline:
    """Stages in the order they run, and the settings they were written as."""

    written: dict[str, Any]
    stages: dict[str, Stage]  # of a recipe without stages, one without a name

    @property
    def output(self) -> Path:
        """The folder that holds the stages, and `final`; a lone stage's own."""
        return Path(self.written["output"])

    @property
    def lone(self) -> Stage | None:
        """The stage of a recipe without stages."""
        return self.stages.get("")

    @property
    def last_retriever(self) -> str:
        """The stage whose model is the pipeline's: the last that is no re-ranker, if there is."""
        names = list(self.stages)
        retrievers = [name for name in names if self.stages[name].kind.retrieves]
        return (retrievers or names)[-1]

    def identity(self) -> dict[str, Any]:
        """What makes two pipelines the same: settings, and the data that no stage makes."""
        settings = {key: value for key, value in self.written.items() if key != "output"}
        return {"settings": settings, "data": {n: s.outside() for n, s in self.stages.items()}}


def assemble(
    values: Mapping[str, Any], where: str, earlier: Mapping[str, Path] | None = None
) -> Pipeline:
    """The stages that settings spell, every one of them resolved.

    What is next to `stages` is common to all of them, as far as it means something to the stage's
    kind of encoder. `earlier` are folders that a lone stage refers to.
    """
    common = {key: value for key, value in values.items() if key != "stages"}
    everyone = FinetuneSettings.parse(common, where)  # one error for a mistake of all stages
    if values.get("stages") is None:
        return Pipeline(common, {"": resolve_stage(everyone, earlier or {})})
    stages: dict[str, Stage] = {}
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


def _check_files(stage: Stage, collection: Collection, corpus: CorpusIds) -> None:
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
    name: str, settings: FinetuneSettings, earlier: Mapping[str, Stage], names: list[str]
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
    """Adds the name of the stage to any error; a lone stage has none."""
    try:
        yield
    except IsthmusError as error:
        if not name:
            raise
        error.at(f"stage {name}")
        if isinstance(error, SettingsError):  # else the fix would be one for all stages
            error.fix = error.fix.replace("--set ", f"--set stages.{name}.")
        raise
