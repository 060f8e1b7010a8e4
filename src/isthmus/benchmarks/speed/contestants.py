"""What is timed: the product's own training, the plain loop, and a matrix product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import Tensor

from isthmus.benchmarks.speed.meter import allocated, device, now, peak, reset_peak
from isthmus.benchmarks.speed.recipe_cost import masked_lm_operations, operations, shape_of
from isthmus.benchmarks.speed.texts import columns_of
from isthmus.config import resolve
from isthmus.errors import TrainingError
from isthmus.nn.backbone import Backbone
from isthmus.nn.pretrained import explained, load_weights, quiet, read_config
from isthmus.pretraining.arithmetic import Shape, Texts
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.task import PretrainTask
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.example_order import EpochOrder
from isthmus.training.task import Batch
from isthmus.training.trainer import Trainer

# Steps at the beginning of every turn that are not timed: memory is allocated again, caches fill.
_SETTLING = 2
_NEVER = 10**9
_MATRIX = {"cuda": 8192, "cpu": 1024}  # large enough to reach the chip's limit
_PRODUCTS = {"cuda": 50, "cpu": 4}


@dataclass(frozen=True)
class Turn:
    """What was done in one turn, in how long."""

    seconds: float
    texts: int
    tokens: int  # without padding
    operations: int | None  # useful ones; None: unknown
    peak: int | None  # bytes in use at most; None where torch does not count them
    step: float | None = None  # seconds of a step; None where its data lie ready
    data: float | None = None  # of these or beside them: to make a step's batch, on one core
    masking: float | None = None  # of these: to hide tokens, on the device

    @property
    def rate(self) -> float:
        """Texts per second."""
        return self.texts / self.seconds


class Ours:
    """`isthmus pretrain` with one recipe: its trainer, task, masking, optimiser, precision.

    A turn trains on all texts once, in the order of an epoch; some of them, before, to settle.
    """

    def __init__(
        self,
        settings: PretrainSettings,
        corpus: TokenisedCorpus,
        steps: int,
        folder: Path,
    ) -> None:
        assert settings.model is not None
        training = settings.training
        before = allocated()
        tokenizer = Tokenizer.load(settings.model)
        backbone = Backbone.load(settings.model, "add", training.dropout, training.seed)
        self.parts = assemble(settings)
        self.task = PretrainTask(backbone, tokenizer, self.parts, training.seed)
        self.shape = shape_of(backbone)
        columns = columns_of(self.parts, corpus, tokenizer)
        batch = training.per_device_train_batch_size
        self.examples = PretrainExamples(
            corpus,
            self.parts.view,
            tokenizer,
            settings.max_length,
            training.seed,
            columns,
            _some_rows(corpus, batch * steps, training.seed),
        )
        self.steps = steps
        self.watch = _Watch()
        self.trainer = _Watched(self.task, self.examples, training, folder, "benchmark")
        self.trainer.add_callback(self.watch)
        self.own = 0
        self._before = before

    def warm_up(self, steps: int) -> None:
        """Runs steps that are not timed: compiles, and allocates what stays."""
        if self.trainer.graphs is not None:
            # A shape is captured when it is seen again; then all have been before any is timed.
            steps = max(steps, self.steps + 1)
        self.trainer.args.max_steps = steps
        self.watch.start(0, self.trainer.seen)
        self.trainer.train()
        self.trainer.make_room()  # others need it
        self.own = allocated() - self._before

    def turn(self) -> Turn:
        """Trains on all texts once."""
        settling = self.trainer.order.settling
        self.trainer.args.max_steps = settling + self.steps
        self.watch.start(settling, self.trainer.seen)
        self.trainer.train()
        texts = [self._counted(batch) for batch in self.trainer.seen]
        self.trainer.seen.clear()
        self.trainer.make_room()  # others need it
        counts = [operations(self.parts, self.shape, each) for each in texts]
        known = [count for count in counts if count is not None]
        whole = sum(known) if len(known) == len(counts) else None
        turn = _turn(self.watch.seconds, texts, whole, self.watch.peak, self.own)
        data, masking = self._timed_data()
        return replace(turn, step=turn.seconds / self.steps, data=data, masking=masking)

    def _timed_data(self) -> tuple[float, float]:
        """Seconds per step to make a batch on the host, and to hide its tokens on the device."""
        start = now()
        batches = self._batches()
        made = now() - start
        moved = [_sent(batch) for batch in batches]
        start = now()
        with torch.no_grad():
            for batch in moved:
                self.task.prepare(batch)
        return made / self.steps, (now() - start) / self.steps

    def _batches(self) -> list[Batch]:
        """All texts, in random order, in batches of a step."""
        size = len(self.examples) // self.steps
        return [
            self.examples.collate([self.examples[0, row] for row in range(start, start + size)])
            for start in range(0, len(self.examples), size)
        ]

    def _counted(self, batch: Batch) -> Texts:
        """What is in a batch, which was prepared in a graph if it was captured."""
        with torch.no_grad():
            prepared = batch if "labels" in batch else self.task.prepare(batch)
        return Texts.of(prepared, self.task.vocabulary)

    def masked(self) -> list[Batch]:
        """The texts for a loop that does not sort by length: in random order, masked."""
        with torch.no_grad():
            return [self.task.prepare(_sent(batch)) for batch in self._batches()]


class Plain:
    """The usual first loop, on a model of transformers as it comes.

    Padded batches, logits of every position, dropout, autocast, AdamW, clipped gradients. Its
    batches lie masked on the device already, which is more than it would have.
    """

    def __init__(
        self, model: str, batches: Sequence[Batch], texts: Sequence[Texts], shape: Shape, bf16: bool
    ) -> None:
        from transformers import AutoModelForMaskedLM

        before = allocated()
        with quiet(), explained(model):
            options = {"config": read_config(model), "dtype": torch.float32}
            self.model, _ = load_weights(AutoModelForMaskedLM, model, options)
        self.model.to(device()).train()
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, weight_decay=0.01, fused=device().type == "cuda"
        )
        self.bf16 = bf16
        self.steps = len(batches)
        self.texts = texts
        self.operations = sum(masked_lm_operations(shape, each) for each in texts)
        self.batches = cycle(
            [
                {
                    "input_ids": batch["encoder_ids"],
                    "attention_mask": batch["attention_mask"],
                    "labels": batch["labels"],
                }
                for batch in batches
            ]
        )
        self.own = 0
        self._before = before

    def warm_up(self, steps: int) -> None:
        """Runs steps that are not timed; allocates what stays."""
        for _ in range(steps):
            self._step()
        self.own = allocated() - self._before

    def turn(self) -> Turn:
        """Trains on all texts once."""
        for _ in range(_SETTLING):
            self._step()
        reset_peak()
        start = now()
        for _ in range(self.steps):
            loss = self._step()
        seconds = now() - start
        if not math.isfinite(loss.item()):
            raise TrainingError(
                f"the loss of the plain loop is {loss.item()}",
                where="plain loop",
                allowed="a finite loss",
                remedy="choose another --model",
            )
        return _turn(seconds, self.texts, self.operations, peak(), self.own)

    def _step(self) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device().type, torch.bfloat16, enabled=self.bf16):
            loss: Tensor = self.model(**next(self.batches)).loss
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        return loss


Contestant = Ours | Plain
"""What takes turns with others."""


class MatrixProduct:
    """Square matrices in the precision of training: what the chip can do at best."""

    def __init__(self, bf16: bool) -> None:
        kind = device().type
        self.size, self.times = _MATRIX[kind], _PRODUCTS[kind]
        dtype = torch.bfloat16 if bf16 else torch.float32
        self.one, self.other = (
            torch.randn(self.size, self.size, device=device()).to(dtype) for _ in range(2)
        )

    def rate(self) -> float:
        """Operations per second."""
        _ = self.one @ self.other
        start = now()
        for _ in range(self.times):
            _ = self.one @ self.other
        return 2 * self.size**3 * self.times / (now() - start)


class _Watched(Trainer):
    """The product's trainer, whose batches are kept, to be counted outside of the timed steps."""

    def __init__(self, task: PretrainTask, examples: PretrainExamples, *more: Any) -> None:
        super().__init__(task, examples, *more)
        self.seen: list[Batch] = []
        batch = self._step_batch_size()
        # Where steps are captured, all of them first: then all shapes of batches have been seen.
        settling = _SETTLING if self.graphs is None else len(examples) // batch
        self.order: _Settled = _Settled(examples, batch, self.settings.seed, settling)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], dict[str, Tensor]]:
        """The trainer's batches, kept in `seen`."""
        batches, totals = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.seen += batches
        return batches, totals


class _Settled(EpochOrder):
    """An epoch, and before it some of its end once more: what is timed is the whole epoch."""

    def __init__(self, examples: PretrainExamples, batch: int, seed: int, settling: int) -> None:
        super().__init__(examples, batch, seed)
        self.settling = settling

    def __iter__(self) -> Iterator[tuple[int, int]]:
        whole = list(super().__iter__())
        ahead = self.settling * self.batch
        repeated = whole * -(-ahead // len(whole))
        return iter([*repeated[-ahead:], *whole])

    def __len__(self) -> int:
        return self.settling * self.batch + super().__len__()


class _Watch(transformers.TrainerCallback):  # type: ignore[misc]
    """Times the steps of a training after the first few; nothing is saved."""

    began = 0.0

    def start(self, skipped: int, seen: list[Batch]) -> None:
        """Resets the clock and the counters before a training."""
        self.skipped = skipped
        self.seen = seen
        # Here: what is captured takes its memory then, and keeps some of it.
        reset_peak()
        self.before = allocated()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The last step is logged, so that the trainer refuses a loss that is not finite."""
        if state.global_step == state.max_steps:
            self.seconds = now() - self.began
            self.peak = peak(self.before)
            control.should_log = True
        elif state.global_step == self.skipped:
            self.seen.clear()
            self.began = now()
        control.should_save = False


def settings_for(
    recipe: str, model: str, shape: tuple[int, int], seed: int, given: Mapping[str, Any]
) -> PretrainSettings:
    """A recipe at a (length, texts per step), one pass per optimiser step, nothing saved."""
    length, texts = shape
    fixed = {
        "max_length": length,
        "probes.documents": 0,
        "training.gradient_accumulation_steps": 1,
        "training.max_steps": 1,
        "training.logging_steps": _NEVER,
        "training.save_steps": _NEVER,
        "training.torch_compile": torch.cuda.is_available(),  # as a training of usual length
        "training.report_to": [],
        "training.seed": seed,
    }
    flags = {"corpus": "benchmark", "output": "benchmark", "model": model}

    def read(more: Mapping[str, Any]) -> PretrainSettings:
        values = resolve("pretrain", recipe, flags, {**fixed, **more, **given})
        return PretrainSettings.parse(values, where=f"recipe {recipe}")

    view = assemble(read({})).view
    # The same number of texts a step, and of the same length, where a view shows two.
    spans = {f"view.{name}": value for name, value in view.filling(length).items()}
    return read({"training.per_device_train_batch_size": max(1, texts // view.rows), **spans})


def _some_rows(corpus: TokenisedCorpus, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Rows of `count` documents in random order; repeated where there are fewer."""
    order = np.random.default_rng(seed).permutation(np.flatnonzero(corpus.lengths >= 2))
    return np.resize(order, count)


def _turn(
    seconds: float, texts: Sequence[Texts], useful: int | None, peak: int | None, own: int
) -> Turn:
    return Turn(
        seconds=seconds,
        texts=sum(len(each.lengths) for each in texts),
        tokens=sum(sum(each.lengths) for each in texts),
        operations=useful,
        peak=None if peak is None else peak + own,
    )


def _sent(batch: Batch) -> Batch:
    return {name: value.to(device()) for name, value in batch.items()}
