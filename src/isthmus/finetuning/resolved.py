"""A stage's settings, resolved once into the parts they name; building them is the check."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isthmus.config.models import model_fingerprint, model_folder
from isthmus.errors import SettingsError
from isthmus.finetuning.development import check_development
from isthmus.finetuning.kinds import Kind
from isthmus.finetuning.losses import Loss, losses, losses_with
from isthmus.finetuning.negatives import Source, negative_sources
from isthmus.finetuning.registries import KINDS
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.teachers import TeacherSource, teacher_source
from isthmus.training.trainer import check_trackers


@dataclass(frozen=True)
class ResolvedStage:
    """One stage: its settings, and every part that they name."""

    written: FinetuneSettings  # `stage:NAME` stands where an earlier stage is referred to
    settings: FinetuneSettings  # with the folders of earlier stages in their place
    earlier: Mapping[str, Path]
    kind: Kind
    sources: tuple[Source, ...]
    losses: tuple[Loss, ...]
    teacher: TeacherSource | None

    @property
    def output(self) -> Path:
        """The folder that the stage writes."""
        return Path(self.settings.output)

    @property
    def group(self) -> int:
        """The passages of a query: one positive and the negatives of every source."""
        negatives: list[int] = [source.settings.num_negatives for source in self.sources]
        return 1 + sum(negatives)

    @property
    def distils(self) -> bool:
        """Whether a loss learns from the teacher's scores."""
        return any("teacher" in loss.needs for loss in self.losses)

    def after(self, earlier: Mapping[str, Path]) -> ResolvedStage:
        """The stage with the folders of earlier ones in the place of their names."""
        return resolve_stage(self.written, earlier) if references(self.written) else self

    def into(self, output: Path) -> ResolvedStage:
        """The stage, to be written into another folder."""
        changed = {"output": str(output)}
        return replace(
            self,
            written=self.written.model_copy(update=changed),
            settings=self.settings.model_copy(update=changed),
        )

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
            "data": self.data(collection),
        }

    def data(self, collection: str, made: Container[str] = ()) -> dict[str, Any]:
        """Fingerprints of what the stage reads, but for what others have `made`, by setting."""
        data: dict[str, Any] = {"collection": collection}
        if "model" not in made:
            name = model_folder(self.settings.model)
            data["model"] = model_fingerprint(name) or name
        if "negatives" not in made and any(origins := [one.origin() for one in self.sources]):
            data["negatives"] = origins
        if "teacher" not in made and self.teacher is not None:
            data["teacher"] = self.teacher.origin()
        return data


def resolve_stage(
    written: FinetuneSettings, earlier: Mapping[str, Path] | None = None
) -> ResolvedStage:
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
    stage = ResolvedStage(written, settings, earlier or {}, kind, sources, chosen, teacher)
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


def _check_teacher(stage: ResolvedStage) -> None:
    """Raises if no loss and no source of negatives uses the teacher."""
    margins = any(source.settings.margin_by == "teacher" for source in stage.sources)
    if stage.teacher is not None and not stage.distils and not margins:
        raise SettingsError(
            f"teacher = {stage.settings.teacher!r} is not used: no loss learns from it, and no "
            "negatives are chosen by it",
            f"leave the teacher out, set one of the losses {', '.join(losses_with('teacher'))} "
            "(--set losses.kl.weight=1.0) or negatives.margin_by=teacher",
        )


_PREFIX = "stage:"


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
