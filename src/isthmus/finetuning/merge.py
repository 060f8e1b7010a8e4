"""Merging: the trained weights averaged with those at the start, as far as documents allow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.finetuning.settings import MergeSettings
from isthmus.progress import Bar, notice

Value = TypeVar("Value")
_LEAST_SPREAD = 1e-6  # of documents that all have one vector
_SHARES = tuple(round(0.05 * step, 2) for step in range(20, 0, -1))  # 1.0, 0.95, … 0.05


@dataclass(frozen=True)
class Merger:
    """Averages modules, as they are trained, with their weights at the start.

    `vectors` gives those of held-out documents, and `measure` how well held-out queries find
    theirs; None where there are none.
    """

    settings: MergeSettings
    modules: Sequence[nn.Module]
    start: Mapping[str, Tensor]
    vectors: Callable[[], Tensor]
    measure: Callable[[], Mapping[str, float]] | None

    def __call__(self) -> dict[str, Any]:
        """Sets the modules to the average; returns the share, and what it changes.

        A share that is not fixed is 0, the weights those of the start, where documents would move
        too far (`reason` change) or held-out queries lose (`reason` queries).
        """
        trained = weights_of(self.modules)
        with Bar("try averages of the weights", unit="tries") as bar:
            found = self._tried(trained, bar)
        set_average(self.modules, self.start, trained, found["share"])
        notice(f"merged: {summary(found)}")
        return found

    def _tried(self, trained: Mapping[str, Tensor], bar: Bar) -> dict[str, Any]:
        def at(share: float, what: Callable[[], Value]) -> Value:
            set_average(self.modules, self.start, trained, share)
            there = what()
            bar.advance()
            return there

        start = functional.normalize(at(0.0, self.vectors).float(), dim=1)
        count = len(start)
        # The mean over all pairs of different documents.
        spread = 1 - (start.sum(0).square().sum().item() - count) / max(count * (count - 1), 1)

        @cache
        def change(share: float) -> float:
            now = functional.normalize(at(share, self.vectors).float(), dim=1)
            return (1 - (now * start).sum(1).mean().item()) / max(spread, _LEAST_SPREAD)

        found: dict[str, Any] = {}
        share = self.settings.share
        if share is None:
            share = largest_share(change, self.settings.max_change, self.settings.max_share)
            if not share:
                found["reason"] = "change"
            elif self.measure is not None:
                ((name, before),) = at(0.0, self.measure).items()
                ((_, after),) = at(share, self.measure).items()
                found = {"measure": name, "before": before, "after": after}
                if after < before:
                    share, found["reason"] = 0.0, "queries"
        return {"share": share, "change": change(share), **found}


def summary(found: Mapping[str, Any]) -> str:
    """Sentences that say what a merger returned."""
    drawn = ""
    if "before" in found:
        drawn = (
            f" Queries generated from held-out documents: {found['measure']} {found['before']:.3f} "
            f"before, {found['after']:.3f} after."
        )
    if found.get("reason") == "change":
        return "UNCHANGED: with any of the trained weights, held-out documents move too far."
    if found.get("reason") == "queries":
        return f"UNCHANGED: with the trained weights, held-out documents are harder to find.{drawn}"
    return (
        f"the weights are {found['share']:.0%} trained and {1 - found['share']:.0%} original ones. "
        f"Vectors of held-out documents moved by {found['change']:.1%} of the mean distance "
        f"between two documents.{drawn}"
    )


def weights_of(modules: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Copies of all parameters and buffers, by module and name."""
    return {
        f"{number}.{name}": tensor.detach().clone()
        for number, module in enumerate(modules)
        for name, tensor in module.state_dict().items()
    }


def set_average(
    modules: Sequence[nn.Module],
    start: Mapping[str, Tensor],
    trained: Mapping[str, Tensor],
    share: float,
) -> None:
    """Sets the modules to share · trained + (1 - share) · start; integers stay as trained."""
    for number, module in enumerate(modules):
        for name, tensor in module.state_dict().items():
            one, other = start[f"{number}.{name}"], trained[f"{number}.{name}"]
            if tensor.is_floating_point():
                other = torch.lerp(one.to(other.device).float(), other.float(), share)
            tensor.copy_(other)


def largest_share(change: Callable[[float], float], most: float, up_to: float) -> float:
    """The largest share, in steps of .05, whose change is at most `most`; 0 where none is.

    `change` grows with the share, so few of the shares need to be tried.
    """
    shares = [up_to, *(share for share in _SHARES if share < up_to)]
    found = bisect_left(shares, True, key=lambda share: change(share) <= most)
    return shares[found] if found < len(shares) else 0.0
