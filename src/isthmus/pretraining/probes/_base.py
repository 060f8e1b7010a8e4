"""Base of the probes: numbers measured on held-out documents, without labels, during training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from isthmus.encoders.dense import pool
from isthmus.errors import SettingsError, choices
from isthmus.pretraining.parts import Part, Vector
from isthmus.pretraining.probes._held_out import HeldOut
from isthmus.pretraining.recipe import Parts
from isthmus.pretraining.registries import PROBES
from isthmus.pretraining.settings import MeasurementSettings, ProbeSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.training.task import Batch

# The largest weights of a lexicon: before fine-tuning nearly all terms have one, few matter.
LEXICON_TERMS = 256


class Probe(Part, ABC):
    """A measurement; `{"": the number to watch}`, and others worth a line of the plot."""

    uses_head = True
    better: ClassVar[Literal["higher", "lower"]]
    drawn: ClassVar[tuple[str, ...]] = ()  # further numbers that belong into its picture

    def applies(self, parts: Parts) -> bool:
        """Whether a recipe has what is measured."""
        return True

    def prepare(self, task: PretrainTask, held_out: HeldOut, decides: bool) -> None:
        """Makes what it needs of the documents, once, before its first measurement.

        Raises where it can measure nothing and `decides`, which is `probes.best_by`.
        """

    def remark(self, seen: Sequence[Mapping[str, float]]) -> str | None:
        """A sentence about its numbers of all evaluations; None: there is nothing to add."""
        return None

    @abstractmethod
    def __call__(self, task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
        """The numbers, from a task in evaluation mode, without gradient."""


def represent(task: PretrainTask, batch: Batch, vector: Vector, terms: int) -> Tensor:
    """What stands for each text when it is searched: a dense vector, or `terms` lexicon weights.

    The largest: before fine-tuning most terms have a weight, and as they are so many, those that a
    text has nothing to do with outweigh the others.
    """
    states = task.backbone(batch["input_ids"], batch["attention_mask"])
    if vector == "lexicon":
        weights = _largest(task, batch, states).relu().log1p()
        values, places = weights.topk(min(terms, weights.shape[1]))
        return torch.zeros_like(weights).scatter(1, places, values)
    return pool(states, batch["attention_mask"], vector)


def vocabulary_logits(task: PretrainTask, held_out: HeldOut) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch of texts, and the logits that their vectors predict, in float32."""
    for number, batch in enumerate(on_device(task, held_out.texts)):
        if number == len(held_out.logits):
            states = task.backbone(batch["input_ids"], batch["attention_mask"])
            if held_out.vector == "lexicon":
                logits = _largest(task, batch, states)
            else:
                pooled = pool(states, batch["attention_mask"], held_out.vector)
                logits = task.backbone.head(pooled).float()
            held_out.logits.append(logits)
        yield batch, held_out.logits[number]


def _largest(task: PretrainTask, batch: Batch, states: Tensor) -> Tensor:
    outside = task.vocabulary.is_special(batch["input_ids"])
    return task.backbone.predict(states).largest(~outside)


def on_device(task: PretrainTask, batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches, one after the other, where the model is."""
    device = task.backbone.word_embeddings.device
    for batch in batches:
        yield {name: value.to(device) for name, value in batch.items()}


def measure(probes: Mapping[str, Probe], task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
    """All numbers of prepared probes, `NAME` and `NAME/FURTHER`, from a task in evaluation mode."""
    values = {}
    for name, probe in probes.items():
        for metric, value in probe(task, held_out).items():
            values[f"{name}/{metric}" if metric else name] = value
    held_out.forget()
    return values


def own_numbers(values: Mapping[str, float], name: str) -> dict[str, float]:
    """The numbers of one probe, named as the probe itself names them."""
    inside = {key: value for key, value in values.items() if key.startswith(f"{name}/")}
    return {"": values[name], **{key.removeprefix(f"{name}/"): inside[key] for key in inside}}


def applying(
    settings: MeasurementSettings, parts: Parts, under: str = "probes.measure"
) -> dict[str, Probe]:
    """The probes that apply to a recipe; raises on unknown ones."""
    probes: dict[str, Probe] = {}
    for name, inner in settings.measure.items():
        where = f"{under}.{name}"
        kind: type[Probe] = PROBES.load(name, where)
        probe = kind(kind.Settings.parse(inner, where, under=where))
        if probe.applies(parts):
            probes[name] = probe
    return probes


def assemble_probes(settings: ProbeSettings, parts: Parts) -> dict[str, Probe]:
    """The probes that apply to a recipe; raises on unknown ones, or an unmeasured `best_by`."""
    probes = applying(settings, parts)
    if settings.best_by is None and settings.patience is not None:
        raise SettingsError(
            "probes.patience is set, but probes.best_by, the probe that it watches, is not",
            "--set probes.best_by=NAME, one of these, or leave patience out",
            ", ".join(probes),
        )
    if settings.best_by is not None and settings.best_by not in probes:
        raise SettingsError(
            f"probes.best_by = {settings.best_by!r} is not measured in this recipe",
            "choose one of these",
            choices(settings.best_by, probes),
        )
    if settings.best_by is not None and not settings.documents:
        raise SettingsError(
            "probes.best_by is set, but probes.documents = 0 holds none out to measure it on",
            "leave probes.documents out (default 300), or probes.best_by",
        )
    return probes
