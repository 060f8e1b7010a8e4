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

    per_device_train_batch_size: int = Field(32, ge=1, description="examples per device and pass")
    gradient_accumulation_steps: int = Field(1, ge=1, description="passes per optimiser step")
    num_train_epochs: float = Field(3.0, gt=0, description="passes over the data")
    max_steps: int | None = Field(None, ge=1, description="optimiser steps; replaces the epochs")
    learning_rate: float = Field(5e-5, gt=0, description="peak learning rate")
    lr_scheduler_type: Literal[
        "linear", "cosine", "cosine_with_min_lr", "constant", "constant_with_warmup"
    ] = Field("linear", description="how the rate goes on after the warm-up")
    min_lr_rate: float | None = Field(
        None, ge=0, le=1, description="where cosine_with_min_lr ends, as a share of the peak"
    )
    warmup_ratio: float = Field(0.1, ge=0, lt=1, description="share of steps that warm up")
    weight_decay: float = Field(0.01, ge=0, description="of AdamW")
    max_grad_norm: float = Field(
        1.0, ge=0, description="gradients are clipped to it; 0 switches off"
    )
    bf16: bool | Literal["auto"] = Field(
        "auto", description="mixed precision; auto: where the chip computes it natively"
    )
    packing: bool = Field(
        True, description="texts go through the model without padding; false: padded"
    )
    kernels: bool = Field(
        True, description="on a GPU, in bf16, our Triton kernels; false: plain torch throughout"
    )
    graphs: bool = Field(
        True, description="on a GPU, steps of one pass as CUDA graphs, where packed"
    )
    torch_compile: bool | Literal["auto"] = Field(
        "auto", description="fuse the operations of others; auto: on a GPU, from 2,000 steps on"
    )
    gradient_checkpointing: bool = Field(
        False, description="activations are computed again instead of kept: less memory, slower"
    )
    dropout: float | None = Field(None, ge=0, lt=1, description="replaces the model's rates")
    seed: int = Field(42, ge=0, lt=2**32, description="of everything that is drawn")
    logging_steps: Steps = Field(
        0.02, description="between two lines of the log; below 1: a share of all steps"
    )
    save_steps: Steps | None = Field(
        None, description="between two checkpoints; below 1: a share of all steps; null: by time"
    )
    save_minutes: float = Field(
        10.0, gt=0, description="between two checkpoints, where save_steps is null"
    )
    save_total_limit: int | None = Field(
        2, ge=0, description="checkpoints kept; null: all; 0: none is written"
    )
    report_to: Annotated[list[str], BeforeValidator(_listed)] = Field(
        ["tensorboard"], description="any tracker transformers knows; none"
    )
    dataloader_num_workers: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto", description="processes that prepare batches; auto: 2 beside a GPU, none on a CPU"
    )

    @model_validator(mode="after")
    def _min_lr_needs_its_schedule(self) -> Self:
        if (self.min_lr_rate is not None) != (self.lr_scheduler_type == "cosine_with_min_lr"):
            raise ValueError("min_lr_rate and lr_scheduler_type=cosine_with_min_lr go together")
        return self
