"""Regularizers keep vectors sparse: functions of term weights, schedules, and targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import transformers
from pydantic import Field
from torch import Tensor

from isthmus.config import Settings
from isthmus.encoders.encoder import Encoder, pad
from isthmus.encoders.sparse import SparseEncoder
from isthmus.errors import SettingsError, TrainingError
from isthmus.finetuning.pairs import PairExamples
from isthmus.finetuning.registries import REGULARIZERS, regularizer
from isthmus.progress import notice
from isthmus.text.corpus import TokenisedCorpus
from isthmus.training.evaluation import evaluated
from isthmus.training.parallel import in_chunks
from isthmus.training.trainer import Trainer

SIDES = ("queries", "documents")
_START = 1e-3  # the weight at which a controller starts when none is given
_CONTROL = 1 / 3  # the share of a training that it takes to reach a target
_LAST = 0.99  # only the last evaluation counts


class TargetSettings(Settings):
    """How many terms a text of either side should have."""

    queries: float | None = Field(None, ge=1, description="active terms of a query; null: any")
    documents: float | None = Field(None, ge=1, description="active terms of a document; null: any")


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
    target: TargetSettings = Field(
        TargetSettings(),
        description="active terms to reach: from the end of the ramp on, the weight is moved "
        "until texts have so many",
    )


@dataclass(frozen=True)
class Regularizer:
    """A function of term weights [texts, vocabulary], by name and with its settings."""

    name: str
    function: Callable[[Tensor], Tensor]
    settings: RegularizerSettings

    @cached_property
    def controllers(self) -> dict[str, WeightController]:
        """The controller of each side that has a target; it belongs to one training."""
        targets = {side: getattr(self.settings.target, side) for side in SIDES}
        return {
            side: WeightController(target, getattr(self.settings, side) or _START)
            for side, target in targets.items()
            if target is not None
        }

    def weights(self, progress: float) -> dict[str, float | Tensor]:
        """The weight of each side that has one: full weight times min(progress / ramp, 1)².

        The full weight is the settings', or the controller's where there is a target.
        """
        ramp = self.settings.ramp
        grown = min(progress / ramp, 1.0) ** 2 if ramp else 1.0
        return {f"{self.name}/{side}": full * grown for side, full in self._full().items()}

    def __call__(self, queries: Tensor, documents: Tensor) -> dict[str, Tensor]:
        """The unweighted value of each side that has a weight."""
        sides = {"queries": queries, "documents": documents}
        return {f"{self.name}/{side}": self.function(sides[side]) for side in self._full()}

    def control(self, active: Mapping[str, Tensor], step: int, steps: int) -> None:
        """Moves the weights that have a target, after `step` of all steps, once the ramp is over.

        During the ramp the weight is too low for active terms to show whether it is right.
        """
        if step - 1 >= self.settings.ramp * (steps - 1):
            for side, controller in self.controllers.items():
                controller.step(active[side], steps)

    def _full(self) -> dict[str, float | Tensor]:
        given = {side: float(getattr(self.settings, side)) for side in SIDES}
        controlled = {side: each.weight.float() for side, each in self.controllers.items()}
        return {side: weight for side, weight in given.items() if weight} | controlled


def settled(chosen: Sequence[Regularizer]) -> float:
    """The share of a training after which vectors are about as sparse as they are going to be.

    Weights have grown by the end of their ramp; a controller takes about as long again.
    """
    ends = [each.settings.ramp + (_CONTROL if each.controllers else 0.0) for each in chosen]
    return min(max(ends, default=0.0), _LAST)


def regularizers(chosen: Mapping[str, Any]) -> list[Regularizer]:
    """The regularizers that settings name; null leaves out one that a recipe had chosen."""
    found: list[Regularizer] = []
    for name, values in chosen.items():
        where = f"regularizers.{name}"
        function = REGULARIZERS.load(name, where)  # raises on a misspelt name, even with null
        if values is None:
            continue
        if not isinstance(values, Mapping):
            raise SettingsError(
                f"{where} = {values!r} does not say whether it is for queries or documents",
                f"--set {where}.documents={values}, or --set {where}.queries={values}",
            )
        settings = RegularizerSettings.parse(values, where="regularizers", under=where)
        regularizer = Regularizer(name, function, settings)
        for other in found:
            if both := regularizer.controllers.keys() & other.controllers.keys():
                raise SettingsError(
                    f"{where}.target: {other.name} and {name} both have a target of "
                    f"{' and '.join(sorted(both))}",
                    f"leave regularizers.{other.name}.target or {where}.target out",
                )
        found.append(regularizer)
    return found


# Both over a whole training, as powers of e: by how much the weight grows when there are always
# twice as many terms as wanted, and by how much the wanted number falls towards the target.
_GAIN = 20.0
_GLIDE = 12.0
_FEWEST = 100  # steps over which both are spread: a short trial must not jump
_FARTHEST = 10.0  # the largest ratio that is believed: a text may have lost all its terms
_COMPARISONS = 20  # of trained and indexed texts in a training


class WeightController:
    """Proportional-integral control of a regularizer's weight, in log space, by active terms.

    After every optimiser step, with the active terms of an average text of all its passes and
    processes, where `wanted` begins with the active terms of the first:

        wanted = max(target, wanted · exp(-glide / steps))
        error = clip(ratio · active / wanted - 1, -1, 1)
        integral += gain / steps · error
        weight = exp(integral + error)

    The integral comes to rest where active terms are right, whatever weight that takes. Terms that
    are lost come back slowly: so `wanted` glides to the target, and the error is added to its
    integral, which damps the oscillation. Both rates are per training, so that a long one
    oscillates no more often than a short one.

    The target is meant for an index, whose texts have another number of terms than those trained
    on: the ratio of the two is measured now and then, and half of a change in its logarithm counts.
    """

    def __init__(self, target: float, weight: float) -> None:
        self.target = target
        self.wanted: Tensor | None = None
        self.integral = torch.tensor(math.log(weight), dtype=torch.float64)
        self.error = torch.zeros_like(self.integral)
        self.ratio = torch.ones_like(self.integral)

    def to(self, device: torch.device) -> None:
        """Moves to a device; from then on, integral and error are changed in place."""
        self.integral, self.error = self.integral.to(device), self.error.to(device)
        self.ratio = self.ratio.to(device)
        self.wanted = None if self.wanted is None else self.wanted.to(device)

    @property
    def weight(self) -> Tensor:
        """The current weight."""
        return (self.integral + self.error).exp()

    def step(self, active: Tensor, steps: int) -> None:
        """Moves the weight by the active terms of one of `steps` optimiser steps.

        All on the device of `active`, so that the host does not synchronise.
        """
        active = active.double() * self.ratio
        steps = max(steps, _FEWEST)
        before = active if self.wanted is None else self.wanted
        self.wanted = (before * math.exp(-_GLIDE / steps)).clamp(min=self.target)
        self.error.copy_((active / self.wanted - 1).clamp(-1, 1))
        self.integral += _GAIN / steps * self.error

    def compare(self, ratio: Tensor) -> None:
        """Updates the ratio of the terms of indexed texts to those of trained texts."""
        ratio = ratio.double().clamp(1 / _FARTHEST, _FARTHEST)
        self.ratio = (self.ratio * ratio).sqrt()

    def state(self) -> dict[str, float | None]:
        """All that changes during training, as numbers."""
        return {
            "wanted": None if self.wanted is None else float(self.wanted),
            "integral": float(self.integral),
            "error": float(self.error),
            "ratio": float(self.ratio),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from an earlier state."""
        wanted = state["wanted"]
        self.wanted = None if wanted is None else torch.full_like(self.integral, wanted)
        self.integral.fill_(state["integral"])
        self.error.fill_(state["error"])
        self.ratio = torch.full_like(self.integral, state["ratio"])


class ControlWeights(transformers.TrainerCallback):  # type: ignore[misc]
    """Runs a task's controllers after every optimiser step, before its checkpoint is written.

    Now and then the ratios to indexed texts are measured, on every process with the same result.
    """

    def __init__(self, task: Any, ratios: Callable[[], Mapping[str, Tensor]]) -> None:
        self.task = task
        self.ratios = ratios

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After every optimiser step, on all processes alike."""
        self.task.control(state.global_step, state.max_steps)
        every = max(1, state.max_steps // _COMPARISONS)
        if self.task.controllers and state.global_step % every == 0:
            ratios = self.ratios()
            for name, controller in self.task.controllers.items():
                controller.compare(ratios[name.rpartition("/")[2]])


@regularizer("flops")
def flops(weights: Tensor) -> Tensor:
    """FLOPS: what an average pair costs to score; falls hardest on terms that many texts share.

    sum_v (mean over texts |w_v|)² of [texts, vocabulary], in float32 (Paria et al., 2020).
    """
    return weights.float().abs().mean(0).square().sum()


@regularizer("l1")
def l1(weights: Tensor) -> Tensor:
    """L1: the weight of an average text, whichever terms carry it.

    Mean over texts of sum_v |w_v| of [texts, vocabulary], in float32.
    """
    return weights.float().abs().sum(1).mean()


ACTIVE_TERMS = "active_terms"


def active_terms(weights: Tensor) -> Tensor:
    """The mean number of terms with a weight, over the texts of [texts, vocabulary]."""
    return (weights.detach() > 0).sum(1).float().mean()


class StopWhenEmpty(transformers.TrainerCallback):  # type: ignore[misc]
    """Stops training when no text between two lines of the log had a single term.

    Where every weight is 0, relu lets no gradient through: nothing would ever change again.
    """

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """After every line of the log, on all processes alike."""
        for side in ("queries", "documents"):
            if (logs or {}).get(f"{ACTIVE_TERMS}/{side}") == 0:
                raise TrainingError(
                    f"all {side} have empty vectors at step {state.global_step} of "
                    f"{args.output_dir}: every term's weight is 0, and no gradient passes a "
                    "weight of 0",
                    f"lower the weights of the regularizers (--set regularizers.….{side}=…) or "
                    "let them grow longer (ramp); if terms were lost at once, lower "
                    "training.learning_rate or warm up longer; train from a checkpoint whose "
                    "masked-LM head is trained",
                )


_DOCUMENTS = 64


def start_with(encoder: SparseEncoder, corpus: TokenisedCorpus, terms: int, seed: int) -> None:
    """Lowers the head's bias where an average document would have more terms, with a notice."""
    drawn = np.sort(np.random.default_rng([seed, 4]).permutation(len(corpus))[:_DOCUMENTS])
    limit = encoder.settings.document_max_length
    rows = [encoder.tokenizer.frame(corpus.tokens(row), limit).tolist() for row in drawn]
    before, lowered = encoder.lower_bias(rows, terms)
    if lowered:
        notice(
            f"an average document has {before:,.0f} terms before training: the head's bias is "
            f"lowered by {lowered:.2f}, which leaves {terms:,} (start_terms)"
        )


_TEXTS = 256  # of either side


class IndexedTerms:
    """Counts the terms of some documents of the corpus and of some queries.

    A passage that was trained on many times gets more terms than a new one, and more with dropout
    than without; an index holds mostly new texts, encoded without dropout.
    """

    def __init__(
        self,
        encoder: Encoder,
        examples: PairExamples,
        queries: Sequence[str],
        seed: int,
        trainer: Trainer,
    ) -> None:
        self._encoder = encoder
        self._trainer = trainer
        generator = np.random.default_rng([seed, 3])

        def some(number: int) -> list[int]:
            return sorted(generator.permutation(number)[:_TEXTS].tolist())

        corpus, limit = examples.corpus, encoder.settings.document_max_length

        def framed(rows: Sequence[int]) -> list[Any]:
            return [encoder.tokenizer.frame(corpus.tokens(row), limit) for row in rows]

        sampled = [queries[number] for number in some(len(queries))]
        self._indexed = encoder.tokenise_queries(sampled), framed(some(len(corpus)))
        groups = [examples[0, number] for number in some(len(examples))]
        # One passage of each, positives and negatives as often as training sees them.
        shown = [group.rows[place % len(group.rows)] for place, group in enumerate(groups)]
        self._shown = [group.query for group in groups], framed(shown)

    def __call__(self) -> dict[str, Tensor]:
        """The mean of each side with the current model, as tensors on its device."""
        return evaluated(self._trainer, lambda: self._terms(self._indexed))

    def ratios(self) -> dict[str, Tensor]:
        """By side, terms of indexed texts per term of training texts in training mode."""
        return evaluated(self._trainer, self._ratios)

    def _ratios(self) -> dict[str, Tensor]:
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):
            indexed = self._terms(self._indexed)
            self._trainer.task.train()
            shown = self._terms(self._shown)
        return {side: indexed[side] / shown[side].clamp(min=1) for side in SIDES}

    def _terms(self, texts: tuple[Sequence[Any], Sequence[Any]]) -> dict[str, Tensor]:
        encoder = self._encoder
        device = encoder.backbone.word_embeddings.device
        found = {}
        represents = encoder.represent_queries, encoder.represent_documents
        for side, represent, rows in zip(SIDES, represents, texts, strict=True):
            ids, mask = pad(rows, encoder.tokenizer.pad_id)
            found[side] = active_terms(in_chunks(represent, ids.to(device), mask.to(device)))
        return found


_OFF = 0.2  # the relative error from which a target counts as missed


def check_targets(chosen: Iterable[Regularizer], active: Mapping[str, float]) -> None:
    """Reports each target that is missed, and what to do; `active` terms of a text by side."""
    for each in chosen:
        for side, controller in each.controllers.items():
            if abs(active[side] / controller.target - 1) <= _OFF:
                continue
            where = f"regularizers.{each.name}"
            message = (
                f"{side} have {active[side]:,.1f} terms on average in the finished model; "
                f"{where}.target.{side} = {controller.target:g} is MISSED: train longer, "
            )
            if active[side] > controller.target:
                message += f"let the ramp end sooner ({where}.ramp), or begin with a higher weight"
            else:
                message += "lower training.learning_rate, or begin with a lower weight"
            notice(f"{message} ({where}.{side}; it came to {float(controller.weight):.2g})")
