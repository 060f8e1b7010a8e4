"""A pre-training recipe: the parts it names, checked against each other before anything loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from isthmus.config import Settings
from isthmus.errors import SettingsError
from isthmus.pretrain.parts import (
    BACKBONE_PROVIDES,
    CORRUPTIONS,
    OBJECTIVES,
    VIEWS,
    Corruption,
    Objective,
    Part,
    View,
)
from isthmus.registry import Registry
from isthmus.training.settings import TrainingSettings


class PretrainSettings(Settings):
    """Everything `isthmus pretrain` can be told."""

    corpus: str = Field(description="what to learn: a path, beir:PATH, hf:NAME, irds:ID, …")
    output: str = Field(description="the folder to write")
    model: str | None = Field(None, description="where to start: a folder or hub name")
    init: str | None = Field(None, description="or a size to start from nothing: tiny, mini, …")
    vocabulary: int = Field(16_000, ge=100, description="tokens to learn, with init")
    titles: bool = Field(True, description="whether titles are part of the text")
    problems: Literal["refuse", "skip"] = Field("refuse", description="what to do with bad input")
    max_length: int = Field(144, ge=8, description="tokens per text, special ones included")
    view: dict[str, Any] = Field(default_factory=lambda: {"name": "same"})
    corruption: dict[str, Any] | None = None
    objectives: dict[str, dict[str, Any]] = Field(min_length=1)
    training: TrainingSettings = Field(default_factory=TrainingSettings)

    @field_validator("view", "corruption", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("objectives", mode="before")
    @classmethod
    def _weight_alone(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {
            name: {"weight": float(inner)} if isinstance(inner, int | float) else inner or {}
            for name, inner in value.items()
        }

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if (self.model is None) == (self.init is None):
            found = "both" if self.model is not None else "neither"
            raise ValueError(
                f"give either model (a folder or hub name) or init (a size); there is {found}"
            )
        return self


@dataclass(frozen=True)
class Parts:
    """The assembled parts of one recipe."""

    view: View
    corruption: Corruption | None
    objectives: dict[str, Objective]


def assemble(settings: PretrainSettings) -> Parts:
    """The parts a recipe names, refused when one requires what nothing provides."""
    view: View = _part(VIEWS, settings.view, "view")
    corruption: Corruption | None = None
    if settings.corruption is not None:
        corruption = _part(CORRUPTIONS, settings.corruption, "corruption")
    objectives: dict[str, Objective] = {
        name: _part(OBJECTIVES, {"name": name, **inner}, f"objectives.{name}")
        for name, inner in settings.objectives.items()
    }
    provided = set(view.provides)
    if corruption is not None:
        _check(corruption, "corruption", provided)
        provided |= corruption.provides
    provided |= BACKBONE_PROVIDES
    for name, objective in objectives.items():
        _check(objective, f"objectives.{name}", provided)
    return Parts(view, corruption, objectives)


def _part(registry: Registry, chosen: Mapping[str, Any], where: str) -> Any:
    values = dict(chosen)
    name = values.pop("name", None)
    if not isinstance(name, str):
        raise SettingsError(
            f"{where} has no name",
            where=where,
            allowed=", ".join(registry.names()),
            remedy=f"write {where}: {{name: …}}",
        )
    part = registry.load(name, where)
    return part(part.Settings.parse(values, where, under=where))


def _check(part: Part, where: str, provided: set[str]) -> None:
    missing = sorted(part.requires - provided)
    if missing:
        field = missing[0]
        providers = [
            f"{registry.kind} {name}"
            for registry in (VIEWS, CORRUPTIONS)
            for name in registry.names()
            if field in registry.load(name).provides
        ]
        raise SettingsError(
            f"{where} requires {field!r}, which nothing in this recipe provides",
            where=where,
            allowed=f"{field!r} comes from: {', '.join(providers) or 'no part that is installed'}",
            remedy=f"add one of these to the recipe, or remove {where}",
        )
