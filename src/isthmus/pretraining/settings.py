"""Settings of `isthmus pretrain`, and of the probes that watch it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from isthmus.cluster import ClusterSettings
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Settings
from isthmus.config.encoding import Similarity
from isthmus.config.models import SCRATCH
from isthmus.nn.shapes import SIZES, shape_of
from isthmus.pretraining.registries import OBJECTIVES, PROBES
from isthmus.training.settings import Steps, TrainingSettings


def _all_probes() -> dict[str, dict[str, Any]]:
    return {name: {} for name in PROBES.names()}


class MeasurementSettings(Settings):
    """What probes measure, and on how many documents."""

    documents: int = Field(
        300,
        ge=0,
        description="Number of documents held out of training to measure on, at most a twentieth "
        "of all; 0: none",
    )
    measure: dict[str, dict[str, Any]] = Field(
        default_factory=_all_probes, description="Probes, each with its settings"
    )
    vector: Literal["auto", "cls", "mean", "lexicon"] = Field(
        "auto",
        description="Vector of a text that is measured; auto: the one that the recipe trains",
    )

    @field_validator("measure", mode="before")
    @classmethod
    def _names_alone(cls, value: Any) -> Any:
        if isinstance(value, list):
            return {name: {} for name in value}
        if isinstance(value, dict):
            return {name: inner or {} for name, inner in value.items()}
        return value


class ProbeSettings(MeasurementSettings):
    """When probes measure what, and which model is kept."""

    every: Steps = Field(
        0.1, description="Steps between two evaluations; below 1: a fraction of all steps"
    )
    best_by: str | None = Field(
        None, description="Probe whose best model becomes final; null: the last model"
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="Number of evaluations without a better best_by after which training stops",
    )


class PretrainSettings(ReadingSettings):
    """Settings of `isthmus pretrain`."""

    verb = "pretrain"

    documents: str = Field(
        description="Documents to train on: a path, beir:PATH, hf:NAME, irds:ID, …"
    )
    model: str = Field(
        description="Model to train: a folder, a hub name, package:NAME, or an untrained one, "
        f"scratch:SIZE ({', '.join(SIZES)}, LAYERSxWIDTH)"
    )
    output: str = Field(description="Folder to write")
    vocabulary: int = Field(
        16_000, ge=100, description="Number of tokens in the tokenizer of scratch:SIZE"
    )
    titles: bool = Field(True, description="Whether titles are part of the text")
    max_length: int = Field(
        144, ge=8, description="Maximum number of tokens per text, special ones included"
    )
    similarity: Similarity | None = Field(
        None,
        description="Similarity of the encoder that is saved; null: that of the model, else dot",
    )
    view: dict[str, Any] = Field(
        default_factory=lambda: {"name": "same"},
        description="Sampling of the input: which texts of a document are read",
    )
    corruption: dict[str, Any] | None = Field(
        None, description="Masking of the encoder's input; null: none"
    )
    bottleneck: dict[str, Any] | None = Field(
        None, description="Vector that passes from the encoder to the decoder; null: none"
    )
    decoder: dict[str, Any] | None = Field(
        None, description="Decoder that reconstructs the text; null: none"
    )
    decoder_corruption: dict[str, Any] | None = Field(
        None, description="Masking of the decoder's input; null: none"
    )
    objectives: dict[str, dict[str, Any]] = Field(
        min_length=1, description="Losses that are added, each as NAME: {weight}"
    )
    probes: ProbeSettings = Field(default_factory=ProbeSettings)
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    cluster: ClusterSettings | None = Field(
        None, description="Machines that tokenise the documents; null: this one"
    )

    @field_validator(
        "view", "corruption", "bottleneck", "decoder", "decoder_corruption", mode="before"
    )
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("objectives", mode="before")
    @classmethod
    def _weight_alone(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        for name, inner in value.items():
            if inner is False:  # a misspelt one is not taken out either
                OBJECTIVES.check(name, f"objectives.{name}")
        return {
            name: {"weight": float(inner)} if isinstance(inner, int | float) else inner or {}
            for name, inner in value.items()
            if inner is not False  # how an override takes an objective out of a recipe
        }

    @model_validator(mode="after")
    def _known_size(self) -> Self:
        if self.size is not None:
            shape_of(self.size)
        return self

    @property
    def size(self) -> str | None:
        """The SIZE of `scratch:SIZE`; None: the model is one that there is."""
        return self.model.removeprefix(SCRATCH) if self.model.startswith(SCRATCH) else None
