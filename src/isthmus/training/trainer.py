"""One thin subclass of transformers.Trainer, shared by all training in the project."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from isthmus.config.output import writing
from isthmus.errors import SettingsError, TrainingError, choices
from isthmus.nn.backbone import Backbone
from isthmus.nn.kernels.available import kernels_allowed
from isthmus.nn.layers import Layer
from isthmus.nn.numerics import native_bf16
from isthmus.progress import notice
from isthmus.training.callbacks import Interruption, SaveByTime, SetEpoch, ShowProgress
from isthmus.training.checkpoints import kept, last_checkpoint, restoring, rotate, seal
from isthmus.training.graphs import Graphs, growing_segments
from isthmus.training.settings import TrainingSettings
from isthmus.training.task import Batch, EpochOrder, Examples, Task

# Compiling takes half a minute, and saves a hundredth of a second per step.
_WORTH_COMPILING = 2000
STOPPED_EARLY = "stopped_early"  # the key in the log
_WEIGHT = "weight/"  # prefix of a loss's weight in a batch


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """Trains a Task on Examples: named losses, step-wide means, whole checkpoints, exact resume."""

    def __init__(
        self,
        task: Task,
        examples: Examples,
        settings: TrainingSettings,
        output: Path,
        description: str = "train",
    ) -> None:
        self.task = task
        self.examples = examples
        self.settings = settings
        self.description = description
        self.evaluating = False
        self._sums: dict[str, Tensor] = {}
        self._steps_summed = 0
        self._sent: dict[str, tuple[Any, Tensor]] = {}
        for module in task.modules():
            if isinstance(module, Backbone):
                module.use_packing = settings.packing
            # transformers would do this for its own models only, and a task is none.
            if settings.gradient_checkpointing and isinstance(module, transformers.PreTrainedModel):
                module.gradient_checkpointing_enable({"use_reentrant": False})
        check_trackers(settings)
        arguments = training_arguments(settings, output)
        super().__init__(
            model=task,
            args=arguments,
            train_dataset=examples,
            data_collator=examples.collate,
        )
        task.settle()
        examples.steady = self._steady()
        self.graphs = Graphs(self._pass, list(task.parameters())) if self._captures() else None
        # compute_loss divides by the items of the whole optimiser step already.
        self.loss_is_scaled_for_ga = True
        self.order = EpochOrder(examples, self._step_batch_size(), settings.seed)
        self.compiled = self._pays_to_compile()
        if self.compiled:
            compile_layers(task)
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        self.add_callback(SetEpoch(self.order))
        if settings.save_steps is None and settings.save_total_limit != 0:
            self.add_callback(SaveByTime(settings.save_minutes))

    def fit(self) -> list[dict[str, float]]:
        """Trains to the end, from the last whole checkpoint if there is one; returns the log."""
        checkpoint = last_checkpoint(Path(self.args.output_dir))
        if checkpoint is not None:
            notice(f"resume from {checkpoint}")
            state, ended = _read_state(checkpoint)
            if ended:
                # Killed after the last checkpoint: transformers would train one more step.
                with restoring(checkpoint):
                    self.task.restore(checkpoint)
                self.state = state
                # What a signal left out after the last step is made up for.
                self.callback_handler.on_train_begin(self.args, state, self.control)
                finished: list[dict[str, float]] = state.log_history
                return finished
        if self.args.gradient_accumulation_steps > 1:
            notice(
                f"a step is {self.args.gradient_accumulation_steps} passes of "
                f"{self.args.train_batch_size} texts, {self._step_batch_size():,} in all "
                "(training.gradient_accumulation_steps)"
            )
        interruption = Interruption(self)
        self.add_callback(interruption)
        progress = ShowProgress(self.description)
        self.add_callback(progress)
        if checkpoint is not None:
            self._continue_order(checkpoint)
        output = Path(self.args.output_dir)
        try:
            with (
                writing(output),
                progress,
                interruption,
                growing_segments(),
            ):
                self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        finally:
            self.make_room()
        history: list[dict[str, float]] = self.state.log_history
        return history

    def train(self, *args: Any, **options: Any) -> Any:
        """What transformers returns of a training; by kernels where the settings allow them."""
        with kernels_allowed(self.settings.kernels):
            return super().train(*args, **options)

    def make_room(self) -> bool:
        """Releases the memory of CUDA graphs, which are captured again; False if there are none."""
        if self.graphs is None or not self.graphs.captured:
            return False
        self.graphs.release()
        return True

    def _continue_order(self, checkpoint: Path) -> None:
        """Sets the order of batches that the checkpoint was trained with, on whatever machine."""
        with restoring(checkpoint):
            self.examples.steady = kept(checkpoint)["steady"] is True
        if not self.examples.steady:
            self.graphs = None

    def _step_batch_size(self) -> int:
        per_pass = self.args.train_batch_size * self.args.world_size
        return int(per_pass * self.args.gradient_accumulation_steps)

    def _pays_to_compile(self) -> bool:
        if self.settings.torch_compile != "auto":
            return self.settings.torch_compile
        epochs = self.settings.num_train_epochs
        steps = self.settings.max_steps or len(self.examples) / self._step_batch_size() * epochs
        return torch.cuda.is_available() and steps >= _WORTH_COMPILING

    def _steady(self) -> bool:
        """Whether batches have few shapes: where padding is left out, on any number of devices."""
        backbones = [part for part in self.task.modules() if isinstance(part, Backbone)]
        packed = bool(backbones) and all(part.leaves_padding_out for part in backbones)
        quick = torch.cuda.is_available() and self.args.bf16 and self.settings.graphs
        return bool(quick and packed)

    def _captures(self) -> bool:
        """Whether passes are captured into CUDA graphs: each must be a whole step."""
        alone = max(self.args.world_size, self.args.n_gpu) == 1
        whole = alone and self.args.gradient_accumulation_steps == 1
        able = self.task.capturable and not self.settings.gradient_checkpointing
        return self.examples.steady and whole and able

    # Losses are divided by the items of the whole optimiser step, which must be known before its
    # first pass: so all passes are prepared here, randomness included, and their items counted.
    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], dict[str, Tensor]]:
        """The prepared passes of one optimiser step, and the items of each loss in all of them.

        A captured pass is prepared and counted inside the graph instead.
        """
        batches: list[Batch] = []
        for _ in range(num_batches):
            batch = next(epoch_iterator, None)
            if batch is None:
                break
            batches.append(self._prepare_inputs(batch))
        if self.graphs is not None:
            return batches, {}
        return self._prepared(batches, device)

    def _prepared(
        self, batches: list[Batch], device: torch.device
    ) -> tuple[list[Batch], dict[str, Tensor]]:
        with torch.no_grad():
            batches = [self.task.prepare(batch) for batch in batches]
        totals: dict[str, Tensor] = {}
        for batch in batches:
            for name, count in self.task.counts(batch).items():
                # On the device of the counts: a copy would synchronise.
                totals[name] = totals.get(name, 0) + count.to(torch.float64)
        if self.args.world_size > 1:
            totals = {name: total.to(device) for name, total in totals.items()}
            for total in totals.values():
                torch.distributed.all_reduce(total)
        return batches, totals

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """The weighted sum of all losses of one pass, each as its share of the step's mean."""
        assert num_items_in_batch is not None
        assert not return_outputs, "evaluation does not go through the trainer"
        total, shares = self._losses(model(inputs), num_items_in_batch, self._weights())
        self._add(shares)
        # Gradients are averaged over processes, while the shares of all processes add up.
        return total * float(self.args.world_size)

    def _weights(self) -> Mapping[str, float | Tensor]:
        return self.task.weights(self.state.global_step / max(self.state.max_steps - 1, 1))

    def _losses(
        self, sums: dict[str, Tensor], items: dict[str, Tensor], weights: Mapping[str, Any]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum, and for the log it and every loss, as shares of the step's mean."""
        total: Tensor = torch.zeros((), device=self.args.device)
        shares = {}
        for name, value in sums.items():
            share = value / items[name.partition("/")[0]].clamp(min=1).to(value.dtype)
            if name in weights:
                total = total + weights[name] * share
            shares[name] = share.detach()
        return total, {**shares, "loss": total.detach()}

    def _add(self, shares: dict[str, Tensor]) -> None:
        for name, share in shares.items():
            self._sums[name] = self._sums.get(name, 0) + share

    def training_step(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        num_items_in_batch: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """One forward and backward pass, replayed from a CUDA graph where possible."""
        if self.graphs is None:
            loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
            return loss
        model.train()
        shares = self.graphs({**inputs, **self._given_weights()})
        self._add(shares)
        return shares["loss"].clone()

    def _given_weights(self) -> Batch:
        """The weights of the losses as entries of the batch, copied when they change."""
        given = {}
        for name, weight in self._weights().items():
            if isinstance(weight, Tensor):  # a controller's, on the device already
                given[_WEIGHT + name] = weight.to(self.args.device, non_blocking=True)
                continue
            if self._sent.get(name, (None,))[0] != weight:
                value = torch.tensor(weight, pin_memory=True)
                self._sent[name] = weight, value.to(self.args.device, non_blocking=True)
            given[_WEIGHT + name] = self._sent[name][1]
        return given

    def _pass(self, batch: Batch) -> dict[str, Tensor]:
        """Runs the one pass of a step, backward too; returns the shares of its losses."""
        weights = {
            name.removeprefix(_WEIGHT): value
            for name, value in batch.items()
            if name.startswith(_WEIGHT)
        }
        given = {name: value for name, value in batch.items() if not name.startswith(_WEIGHT)}
        [prepared], items = self._prepared([given], self.args.device)
        total, shares = self._losses(self.model_wrapped(prepared), items, weights)
        self.accelerator.backward(total)
        return shares

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds every named loss to what transformers logs.

        "loss" is replaced too: transformers loses its sum when a run is resumed.
        """
        steps = self.state.global_step - self._steps_summed
        if "loss" in logs and self._sums and steps:
            for name, value in self._summed().items():
                logs[name] = value / steps
            self._sums = {}
            self._steps_summed = self.state.global_step
            if not math.isfinite(logs["loss"]):
                raise TrainingError(
                    f"the loss is {logs['loss']} at step {self.state.global_step} of "
                    f"{self.args.output_dir}",
                    "lower training.learning_rate, warm up longer, or --set training.bf16=false; "
                    "checkpoints before this step are intact",
                )
        super().log(logs, start_time)

    def _summed(self) -> dict[str, float]:
        """The sums since the last line of the log, over all processes."""
        if self.args.world_size > 1:
            for value in self._sums.values():
                torch.distributed.all_reduce(value)
        return {name: value.item() for name, value in self._sums.items()}

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any]:
        return self.order

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        # Without training_args.bin, which transformers would pickle and nothing here reads.
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self.task.save(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder, device = Path(resume_from_checkpoint), self.args.device
        with restoring(folder):
            self.task.restore(folder)
            found = kept(folder)
            self._steps_summed = int(found["last_logged"])
            if self.args.process_index == 0:
                sums = {name: float(value) for name, value in found["sums"].items()}
                self._sums = {
                    name: torch.tensor(value, device=device) for name, value in sums.items()
                }

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with restoring(Path(checkpoint or "")):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with restoring(Path(checkpoint or "")):
            super()._load_rng_state(checkpoint)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        sums = self._summed()
        if self.args.world_size > 1:
            torch.distributed.barrier()  # every process has written its random state
            # The first process keeps the sums of all; the others start again at 0.
            here = self.args.process_index == 0
            self._sums = {
                name: torch.tensor(value if here else 0.0, device=self.args.device)
                for name, value in sums.items()
            }
        if self.args.should_save:
            output = Path(self.args.output_dir)
            newest = output / f"checkpoint-{self.state.global_step}"
            seal(
                newest,
                {
                    "last_logged": self._steps_summed,
                    "sums": sums,
                    "steady": self.examples.steady,
                },
            )
            # Only now may older ones be removed: until here they were the only whole ones.
            rotate(output, self.settings.save_total_limit)


def _read_state(checkpoint: Path) -> tuple[Any, bool]:
    """The state of a checkpoint, and whether training had come to its end."""
    with restoring(checkpoint):
        state = transformers.TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        if state.global_step != int(checkpoint.name.partition("-")[2]):
            raise ValueError(f"trainer_state.json is of step {state.global_step!r}")
        stopped = any(STOPPED_EARLY in line for line in state.log_history)
        return state, stopped or state.global_step >= state.max_steps


# Kinds of layers, lengths, full and padded batches: each is compiled once, and beyond this number
# torch would run layers uncompiled, with one warning.
_VARIANTS = 64


def compile_layers(module: nn.Module, backend: str = "inductor") -> None:
    """Compiles every layer of the encoders and decoders in a module at its first call.

    Layers that run on our kernels are never called, hence not compiled. Not the module as a whole:
    layers of one kind share what was compiled for the first, which takes seconds instead of
    minutes, and what lies between them (masking, packing, heads on chosen rows) depends on the
    data. Weights, their names and hooks on a layer stay as they are.
    """
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _VARIANTS)
    for part in module.modules():
        if isinstance(part, Layer):
            part.plain = torch.compile(part.plain, backend=backend)  # type: ignore[method-assign]
        elif isinstance(part, Backbone):
            for layer in part.layers:
                layer.forward = torch.compile(layer.forward, backend=backend)


_BESIDE_A_GPU = 2  # processes that prepare batches
_NEVER = 10**9  # steps


def check_trackers(settings: TrainingSettings) -> None:
    """Raises on a tracker that is not installed; called before any data is prepared."""
    from transformers.integrations import get_available_reporting_integrations

    available = [*get_available_reporting_integrations(), "all", "none"]
    for tracker in settings.report_to:
        if tracker not in available:
            raise SettingsError(
                f"training.report_to: the tracker {tracker!r} is not installed",
                f"pip install {tracker}, or --set training.report_to=none",
                choices(tracker, available),
            )


def worker_count(settings: TrainingSettings) -> int:
    """How many processes prepare batches: `auto` means 2 beside a GPU, none on a CPU."""
    if settings.dataloader_num_workers != "auto":
        return settings.dataloader_num_workers
    # A CPU has the model to compute; beside a GPU, putting a batch together would keep it waiting.
    spare = (os.cpu_count() or 1) - 1
    return min(_BESIDE_A_GPU, spare) if torch.cuda.is_available() else 0


def training_arguments(settings: TrainingSettings, output: Path) -> Any:
    """The transformers.TrainingArguments that the settings stand for."""
    schedule = {} if settings.min_lr_rate is None else {"min_lr_rate": settings.min_lr_rate}
    return transformers.TrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=settings.per_device_train_batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        num_train_epochs=settings.num_train_epochs,
        max_steps=settings.max_steps or -1,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.lr_scheduler_type,
        lr_scheduler_kwargs=schedule,
        warmup_steps=settings.warmup_ratio,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        bf16=native_bf16() if settings.bf16 == "auto" else settings.bf16,
        seed=settings.seed,
        logging_steps=settings.logging_steps,
        save_strategy="no" if settings.save_total_limit == 0 else "steps",
        save_steps=settings.save_steps or _NEVER,  # but at the end
        save_total_limit=None,
        report_to=settings.report_to,
        dataloader_num_workers=(workers := worker_count(settings)),
        dataloader_persistent_workers=workers > 0,
        dataloader_pin_memory=torch.cuda.is_available(),
        # Otherwise the host waits, before every step, until the GPU is through with the last one.
        accelerator_config={"non_blocking": torch.cuda.is_available()},
        remove_unused_columns=False,
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        average_tokens_across_devices=False,
        logging_nan_inf_filter=False,
        log_level="error",
        use_cpu=not torch.cuda.is_available(),
    )
