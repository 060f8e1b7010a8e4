"""How many tokens a pre-training reads, so that starts are compared at equal cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from isthmus.errors import SettingsError

_TOLERANCE = 0.02
_TWO_TEXTS = ("neighbours",)  # views that show two spans of a document


def tokens_of(values: Mapping[str, Any]) -> float:
    """The tokens that a pre-training reads at most; without a number of steps, per document.

    Texts are counted at full length: which of them are shorter is the same for all starts.
    """
    training = values.get("training") or {}
    view = values.get("view")
    given: Mapping[str, Any] = view if isinstance(view, Mapping) else {"name": view}
    tokens = float(values.get("max_length", 144))
    if given.get("name") in _TWO_TEXTS:
        tokens = 2 * min(tokens, float(given.get("span", tokens)))
    if (steps := training.get("max_steps")) is None:
        return tokens * float(training.get("num_train_epochs", 3.0))
    passes = training.get("gradient_accumulation_steps", 1)
    return tokens * float(steps * passes * training.get("per_device_train_batch_size", 32))


def check_budgets(read: Iterable[tuple[str, str, float]]) -> None:
    """Refuses starts of one task that were pre-trained on different numbers of tokens.

    `read` are tasks, starts and tokens; a start without pre-training is compared with all others.
    """
    seen: dict[str, tuple[str, float]] = {}
    for task, start, tokens in read:
        other, others = seen.setdefault(task, (start, tokens)) if tokens else (start, tokens)
        if abs(tokens - others) > _TOLERANCE * others:
            raise SettingsError(
                f"for {task}, {start!r} reads {tokens:,.0f} tokens in pre-training and {other!r} "
                f"{others:,.0f}: a difference between them could be due to that",
                f"change training.max_steps or the batch in starts.{start}.settings (two spans of "
                "a document count twice), or --set equal_tokens=false",
            )
