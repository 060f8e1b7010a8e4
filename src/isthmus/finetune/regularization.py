"""How strongly vectors are kept sparse, on which side, and from when on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from torch import Tensor

from isthmus.config import Settings
from isthmus.errors import SettingsError
from isthmus.registry import Registry

REGULARIZERS = Registry("isthmus.finetune.regularizers", "regularizer")


class RegularizerSettings(Settings):
    """The weight of a regularizer on either side, and how it grows."""

    queries: float = Field(0.0, ge=0, description="weight on the queries' vectors")
    documents: float = Field(0.0, ge=0, description="weight on the documents' vectors")
    ramp: float = Field(
        1 / 3,
        ge=0,
        le=1,
        description="share of the optimiser steps in which the weights grow, quadratically",
    )


@dataclass(frozen=True)
class Regularizer:
    """A function of term weights [texts, vocabulary], by name and with its settings."""

    name: str
    function: Callable[[Tensor], Tensor]
    settings: RegularizerSettings

    def weights(self, progress: float) -> dict[str, float]:
        """The weight of each side that has one: settings' times min(progress / ramp, 1)²."""
        grown = min(progress / self.settings.ramp, 1.0) ** 2 if self.settings.ramp else 1.0
        sides = {"queries": self.settings.queries, "documents": self.settings.documents}
        return {f"{self.name}/{side}": full * grown for side, full in sides.items() if full}

    def __call__(self, queries: Tensor, documents: Tensor) -> dict[str, Tensor]:
        """The unweighted value of each side that has a weight."""
        sides = {"queries": queries, "documents": documents}
        return {name: self.function(sides[name.partition("/")[2]]) for name in self.weights(1.0)}


def regularizers(chosen: Mapping[str, Any]) -> list[Regularizer]:
    """The regularizers that settings name, refused when there is none of a name."""
    found = []
    for name, values in chosen.items():
        where = f"regularizers.{name}"
        function = REGULARIZERS.load(name, where)
        if not isinstance(values, Mapping):
            raise SettingsError(
                f"{where} = {values!r} does not say on which side",
                where=where,
                allowed="a mapping with the keys queries, documents, ramp",
                remedy=f"--set {where}.documents={values}, or --set {where}.queries={values}",
            )
        settings = RegularizerSettings.parse(values, where="regularizers", under=where)
        found.append(Regularizer(name, function, settings))
    return found
