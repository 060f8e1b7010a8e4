"""Training settings, under the names that users of transformers know."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from isthmus.config import Settings


def _whole_above_one(value: float) -> float:
    if value > 1 and value != int(value):
        raise ValueError("a whole number of steps, or a share below 1")
    return value


def _listed(value: object) -> object:
    """A tracker's name as a list of one, and `none` as an empty list."""
    if isinstance(value, str):
        return [] if value == "none" else [value]
    return value


# How often something is done: every so many optimiser steps or, below 1, that share of all steps.
Steps = Annotated[int | float, Field(gt=0), AfterValidator(_whole_above_one)]


class TrainingSettings(Settings):
    """How long, how fast, in which precision, and what is kept."""

    per_device_train_batch_size: int = Field(
        32, ge=1, description="Number of examples per device and pass"
    )
    gradient_accumulation_steps: int = Field(
        1, ge=1, description="Number of passes per optimiser step"
    )
    num_train_epochs: float = Field(3.0, gt=0, description="Number of passes over the data")
    max_steps: int | None = Field(
        None, ge=1, description="Number of optimiser steps, instead of epochs; null: by epochs"
    )
    learning_rate: float = Field(5e-5, gt=0, description="Peak learning rate")
    lr_scheduler_type: Literal[
        "linear", "cosine", "cosine_with_min_lr", "constant", "constant_with_warmup"
    ] = Field("linear", description="Schedule of the learning rate after warm-up")
    min_lr_rate: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Final learning rate of cosine_with_min_lr, as a fraction of the peak",
    )
    warmup_ratio: float = Field(0.1, ge=0, lt=1, description="Fraction of steps that warm up")
    weight_decay: float = Field(0.01, ge=0, description="Weight decay of AdamW")
    max_grad_norm: float = Field(
        1.0, ge=0, description="Norm that gradients are clipped to; 0: no clipping"
    )
    bf16: bool | Literal["auto"] = Field(
        "auto",
        description="Whether precision is mixed; auto: where the chip computes bf16 natively",
    )
    packing: bool = Field(True, description="Whether texts go through the model without padding")
    kernels: bool = Field(
        True, description="Whether Triton kernels are used on a GPU, in bf16; false: plain torch"
    )
    graphs: bool = Field(
        True, description="Whether steps of one pass are CUDA graphs on a GPU, where packed"
    )
    torch_compile: bool | Literal["auto"] = Field(
        "auto", description="Whether layers are compiled; auto: on a GPU, from 2,000 steps on"
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Whether activations are computed again instead of kept: less memory, slower",
    )
    dropout: float | None = Field(
        None, ge=0, lt=1, description="Dropout rate; null: the rates of the model"
    )
    seed: int = Field(42, ge=0, lt=2**32, description="Seed of everything that is drawn")
    logging_steps: Steps = Field(
        0.02, description="Steps between two lines of the log; below 1: a fraction of all steps"
    )
    save_steps: Steps | None = Field(
        None,
        description="Steps between two checkpoints; below 1: a fraction of all steps; null: by "
        "time",
    )
    save_minutes: float = Field(
        10.0, gt=0, description="Minutes between two checkpoints, where save_steps is null"
    )
    save_total_limit: int | None = Field(
        2, ge=0, description="Number of checkpoints that are kept; null: all; 0: none is written"
    )
    report_to: Annotated[list[str], BeforeValidator(_listed)] = Field(
        ["tensorboard"], description="Trackers of transformers that losses are reported to, or none"
    )
    dataloader_num_workers: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="Number of processes that prepare batches; auto: 2 with a GPU, none on a CPU",
    )

    @model_validator(mode="after")
    def _min_lr_needs_its_schedule(self) -> Self:
        if (self.min_lr_rate is not None) != (self.lr_scheduler_type == "cosine_with_min_lr"):
            raise ValueError("min_lr_rate and lr_scheduler_type=cosine_with_min_lr go together")
        return self
