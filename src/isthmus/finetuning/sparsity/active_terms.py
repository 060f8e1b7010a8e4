"""The number of active terms of a text; training stops when it is 0."""

from __future__ import annotations

from typing import Any

import transformers
from torch import Tensor

from isthmus.errors import TrainingError

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
