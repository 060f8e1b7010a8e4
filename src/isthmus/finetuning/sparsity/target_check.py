"""Whether a finished model has as many terms as its regularizers were to leave it."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.finetuning.bi_encoder_task import BiEncoderTask
from isthmus.progress import notice

_OFF = 0.2  # more than this share off its target, it is missed


def check_targets(task: BiEncoderTask, active: Mapping[str, float]) -> None:
    """Says which target the terms of an average text missed, by side, and what to do."""
    for regularizer in task.regularizers:
        for side, steering in regularizer.steering.items():
            if abs(active[side] / steering.target - 1) <= _OFF:
                continue
            where = f"regularizers.{regularizer.name}"
            told = (
                f"{side} have {active[side]:,.1f} terms on average in the finished model; "
                f"{where}.target.{side} = {steering.target:g} is MISSED: train longer, "
            )
            if active[side] > steering.target:
                told += f"let the ramp end sooner ({where}.ramp), or begin with a higher weight"
            else:
                told += "lower training.learning_rate, or begin with a lower weight"
            notice(f"{told} ({where}.{side}; it came to {float(steering.weight):.2g})")
