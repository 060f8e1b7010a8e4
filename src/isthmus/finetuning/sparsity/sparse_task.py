"""A sparse bi-encoder with its losses, and the regularizers that keep its vectors sparse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from isthmus.config.output import write_json
from isthmus.encoders.encoder import Encoder
from isthmus.finetuning.bi_encoder_task import BiEncoderTask
from isthmus.finetuning.losses._base import Loss
from isthmus.finetuning.regularizers._base import SIDES, Regularizer
from isthmus.finetuning.sparsity.active_terms import ACTIVE_TERMS, active_terms
from isthmus.training.gather import gather
from isthmus.training.task import Batch

_CONTROLLERS_FILE = "steering.json"


class SparseTask(BiEncoderTask):
    """A bi-encoder task that logs active terms and controls the weights of regularizers.

    A regularizer sees the texts of one pass on all processes: it counts as one item per pass and
    process, so the step's value is the mean over its passes, however many processes share them.
    Gradient accumulation therefore does not widen what it sees. For L1 that changes nothing; FLOPS
    of the whole step would be lower than the mean of its passes (a square of means), the more so
    the fewer texts a pass has.
    """

    def __init__(
        self,
        encoder: Encoder,
        group: int,
        temperature: float,
        losses: Sequence[Loss],
        regularizers: Sequence[Regularizer] = (),
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__(encoder, group, temperature, losses, mini_batch_size)
        self.regularizers = list(regularizers)
        self.gathers = self.gathers or bool(self.regularizers)
        self.controllers = {
            f"{regularizer.name}/{side}": controller
            for regularizer in self.regularizers
            for side, controller in regularizer.controllers.items()
        }
        # Active terms of either side and passes, summed over this optimiser step. Changed in place
        # only, like the numbers of controllers: a captured pass reads them where they are.
        self._seen = torch.zeros(len(SIDES) + 1)

    def settle(self) -> None:
        """Caches the parameter list, and moves controllers to the encoder's device."""
        super().settle()
        device = self.encoder.backbone.word_embeddings.device
        self._seen = self._seen.to(device)
        for controller in self.controllers.values():
            controller.to(device)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The number of queries for losses; 1 for what is a mean over the pass already."""
        means = [ACTIVE_TERMS, *(regularizer.name for regularizer in self.regularizers)]
        return super().counts(batch) | {name: torch.tensor(1) for name in means}

    def _further_sums(self, queries: Tensor, own: Tensor, passages: Tensor) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}
        everyone = gather(queries) if self.regularizers else queries
        for regularizer in self.regularizers:
            sums |= regularizer(everyone, passages)
        active = [active_terms(queries), active_terms(own)]
        sums |= {f"{ACTIVE_TERMS}/{side}": n for side, n in zip(SIDES, active, strict=True)}
        if self.controllers:
            self._seen += torch.stack([*active, torch.ones_like(active[0])])
            for name, controller in self.controllers.items():
                sums[f"{name}/weight"] = controller.weight.to(active[0])
        return sums

    def control(self, step: int, steps: int) -> None:
        """Moves the weights that have a target, after `step` of all optimiser steps."""
        if self.controllers:
            *sums, passes = self._seen
            means = gather((torch.stack(sums) / passes)[None]).mean(0)
            active = dict(zip(SIDES, means, strict=True))
            for regularizer in self.regularizers:
                regularizer.control(active, step, steps)
            self._seen.zero_()

    def weights(self, progress: float) -> Mapping[str, float | Tensor]:
        """The weights of the losses, and the current weights of the regularizers by side."""
        weights = dict(super().weights(progress))
        for regularizer in self.regularizers:
            weights |= regularizer.weights(progress)
        return weights

    def save(self, folder: Path) -> None:
        """Writes the encoder, and beside it the state of the controllers."""
        super().save(folder)
        if self.controllers:
            states = {name: controller.state() for name, controller in self.controllers.items()}
            write_json(folder / _CONTROLLERS_FILE, states)

    def restore(self, folder: Path) -> None:
        """Loads what `save` wrote."""
        super().restore(folder)
        if self.controllers:
            states = json.loads((folder / _CONTROLLERS_FILE).read_text(encoding="utf-8"))
            for name, controller in self.controllers.items():
                controller.restore(states[name])
