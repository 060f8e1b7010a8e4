"""Whether a finished model has as many active terms as the targets of its regularizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isthmus.finetuning.regularizers._base import Regularizer
from isthmus.progress import notice

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
