"""Sparse vectors while training: active terms, weights that reach a target, terms at the start."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from isthmus.config.output import write_json
from isthmus.encoders.encoder import Encoder, pad
from isthmus.encoders.sparse import SparseEncoder
from isthmus.errors import TrainingError
from isthmus.finetuning.bi_encoder_task import BiEncoderTask
from isthmus.finetuning.losses import Loss
from isthmus.finetuning.pairs import PairExamples
from isthmus.finetuning.regularizers import (
    SIDES,
    Regularizer,
)
from isthmus.progress import notice
from isthmus.text.corpus import TokenisedCorpus
from isthmus.training.evaluation import evaluated
from isthmus.training.parallel import gather, in_chunks
from isthmus.training.task import Batch
from isthmus.training.trainer import Trainer

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


# Both over a whole training, as powers of e: by how much the weight grows when there are always
# twice as many terms as wanted, and by how much the wanted number falls towards the target.


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
    for regularizer in chosen:
        for side, controller in regularizer.controllers.items():
            if abs(active[side] / controller.target - 1) <= _OFF:
                continue
            where = f"regularizers.{regularizer.name}"
            message = (
                f"{side} have {active[side]:,.1f} terms on average in the finished model; "
                f"{where}.target.{side} = {controller.target:g} is MISSED: train longer, "
            )
            if active[side] > controller.target:
                message += f"let the ramp end sooner ({where}.ramp), or begin with a higher weight"
            else:
                message += "lower training.learning_rate, or begin with a lower weight"
            notice(f"{message} ({where}.{side}; it came to {float(controller.weight):.2g})")


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
