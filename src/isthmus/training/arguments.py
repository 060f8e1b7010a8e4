"""Settings as transformers takes them: its training arguments, trackers and worker processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import transformers

from isthmus.errors import SettingsError, choices
from isthmus.nn.numerics import native_bf16
from isthmus.training.settings import TrainingSettings

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
