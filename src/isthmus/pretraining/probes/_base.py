"""What a probe is: a number measured on held-out documents, without labels, while training runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from isthmus.errors import SettingsError, choices
from isthmus.nn.lexicon import largest_logits
from isthmus.pretraining.parts import PROBES, Part
from isthmus.pretraining.recipe import Parts
from isthmus.pretraining.settings import ProbeSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.training.task import Batch

Vector = Literal["cls", "mean", "lexicon"]
# Of a lexicon that nothing has made sparse yet: nearly all terms have a weight, few of them matter.
LEXICON_TERMS = 256


@dataclass(frozen=True)
class HeldOut:
    """Documents that training never sees, ready to be measured."""

    vector: Vector  # what stands for a text
    texts: list[Batch]  # each document, cropped, unmasked
    steps: list[Batch]  # what the recipe's own view shows of them
    queries: list[Batch]
    passages: list[Batch]
    group_of_query: Tensor  # a query finds any passage of its group
    group_of_passage: Tensor
    frequent: Tensor  # tokens, by the number of training documents that hold them
    logits: list[Tensor] = field(default_factory=list)  # of `texts`, kept for one look

    def forget(self) -> None:
        """Drops what was computed with weights that have changed since."""
        self.logits.clear()


class Probe(Part, ABC):
    """A measurement; `{"": the number to watch}`, and others worth a line of the plot."""

    better: ClassVar[Literal["higher", "lower"]]
    drawn: ClassVar[tuple[str, ...]] = ()  # further numbers that belong into its picture

    def applies(self, parts: Parts) -> bool:
        """Whether a recipe has what is measured."""
        return True

    def remark(self, seen: Sequence[Mapping[str, float]]) -> str | None:
        """What a user should know who saw its numbers, look by look; None: nothing beyond."""
        return None

    @abstractmethod
    def __call__(self, task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
        """The numbers, from a task in evaluation mode, without gradient."""


def trained_vector(parts: Parts) -> Vector:
    """What a recipe teaches to stand for a text."""
    bag_of_words = parts.objectives.get("bag_of_words")
    if bag_of_words is not None:
        vector: Vector = bag_of_words.settings.vector
        return vector
    return "cls" if parts.bottleneck is None else parts.bottleneck.trains


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
    return _pooled(batch, states, vector)


def vocabulary_logits(task: PretrainTask, held_out: HeldOut) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch of texts, and what their vectors say about the vocabulary, in float32."""
    for number, batch in enumerate(on_device(task, held_out.texts)):
        if number == len(held_out.logits):
            states = task.backbone(batch["input_ids"], batch["attention_mask"])
            if held_out.vector == "lexicon":
                logits = _largest(task, batch, states)
            else:
                logits = task.backbone.head(_pooled(batch, states, held_out.vector)).float()
            held_out.logits.append(logits)
        yield batch, held_out.logits[number]


def _pooled(batch: Batch, states: Tensor, vector: Vector) -> Tensor:
    if vector == "cls":
        return states[:, 0].float()
    weights = batch["attention_mask"][:, :, None].float()
    return (states.float() * weights).sum(1) / weights.sum(1)


def _largest(task: PretrainTask, batch: Batch, states: Tensor) -> Tensor:
    outside = task.vocabulary.is_special(batch["input_ids"])
    return largest_logits(task.backbone, states, ~outside)


def on_device(task: PretrainTask, batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches, one after the other, where the model is."""
    device = task.backbone.word_embeddings.device
    for batch in batches:
        yield {name: value.to(device) for name, value in batch.items()}


def assemble_probes(settings: ProbeSettings, parts: Parts) -> dict[str, Probe]:
    """The probes that apply to a recipe; a name that is none, or chosen in vain, is refused."""
    probes: dict[str, Probe] = {}
    for name, inner in settings.measure.items():
        where = f"probes.measure.{name}"
        kind: type[Probe] = PROBES.load(name, where)
        probe = kind(kind.Settings.parse(inner, where, under=where))
        if probe.applies(parts):
            probes[name] = probe
    if settings.best_by is None and settings.patience is not None:
        raise SettingsError(
            "probes.patience is set, but not the probe that it watches",
            where="probes.best_by",
            allowed=", ".join(probes),
            remedy="--set probes.best_by=retrieval, or leave patience out",
        )
    if settings.best_by is not None and settings.best_by not in probes:
        raise SettingsError(
            f"probes.best_by = {settings.best_by!r} is not measured in this recipe",
            where="probes.best_by",
            allowed=choices(settings.best_by, probes),
            remedy="choose one of these",
        )
    if settings.best_by is not None and not settings.documents:
        raise SettingsError(
            "probes.best_by is set, but probes.documents = 0 holds none out to measure it on",
            where="probes.documents",
            allowed="20 or more; 300 is the default",
            remedy="leave probes.documents out, or probes.best_by",
        )
    return probes
