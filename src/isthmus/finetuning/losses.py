"""Losses: functions of tensors, which hold no model and log nothing; and what a stage adds up."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor

from isthmus.config import Settings
from isthmus.errors import SettingsError, choices
from isthmus.finetuning.registries import LOSSES, loss

# What a loss may be computed from: in words, and which settings provide it.
_NEEDS = {
    "scores": (
        "scores of the whole batch's passages",
        "--set encoder=dense or sparse: a cross-encoder reads each query with its own group only",
    ),
    "group": ("negatives in the query's own group", "--set negatives=bm25, or another source"),
    "teacher": (
        "a teacher's scores",
        "--set teacher.name=cross_encoder --set teacher.model=…, or --set teacher.name=scores "
        "--set teacher.file=…",
    ),
}
_NEEDS["targets"] = _NEEDS["scores"]
_NEEDS["passages"] = _NEEDS["start_passages"] = (
    "vectors of passages",
    "--set encoder=dense or sparse: a cross-encoder gives scores only",
)
_FEW = 8  # documents of a group
Function = TypeVar("Function", bound=Callable[..., Tensor])


class LossSettings(Settings):
    """The weight of a loss in the sum."""

    weight: float = Field(1.0, ge=0, description="0: computed and logged, but not trained on")


@dataclass(frozen=True)
class Loss:
    """A function of named tensors that gives a value per query; its parameters are its needs."""

    name: str
    function: Callable[..., Tensor]
    settings: LossSettings

    @property
    def softmax_over(self) -> str | None:
        """The tensor that the loss normalises with a softmax, if the function declares one."""
        return getattr(self.function, "softmax_over", None)

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The names of the tensors that the loss is computed from."""
        return tuple(inspect.signature(self.function).parameters)

    def __call__(self, given: Mapping[str, Tensor]) -> Tensor:
        """The value of each query, from tensors by name."""
        return self.function(**{name: given[name] for name in self.needs})


def softmax_over(tensor: Literal["group", "scores"]) -> Callable[[Function], Function]:
    """Declares that a loss is a softmax over a query's own group, or over the whole batch."""

    def declared(function: Function) -> Function:
        setattr(function, "softmax_over", tensor)  # noqa: B010 (functions have no such attribute)
        return function

    return declared


def losses(chosen: Mapping[str, Any], given: Collection[str]) -> list[Loss]:
    """The losses that settings name; raises when nothing provides what one of them needs.

    Args:
        chosen: Settings by name; null leaves out a loss that a recipe had chosen.
        given: The names of the tensors that will be there: scores, targets, group, teacher.

    """
    found = []
    for name, function, values in LOSSES.chosen(chosen, "losses", "weight"):
        settings = LossSettings.parse(values, where="losses", under=f"losses.{name}")
        loss = Loss(name, function, settings)
        for need in loss.needs:
            if need not in given:
                _refuse(loss, need, given)
        found.append(loss)
    if not any(loss.settings.weight for loss in found):
        raise SettingsError(
            "losses: no loss is trained on",
            "choose one of these: --set losses.NAME.weight=1.0",
            ", ".join(_usable(given)),
        )
    return found


def outweighed_batch(learnt_by: Iterable[Loss], group: int) -> str | None:
    """Advice where losses over a small group outweigh those over the batch; None elsewhere."""
    weights = {"group": 0.0, "scores": 0.0, None: 0.0}
    for each in learnt_by:
        weights[each.softmax_over] += each.settings.weight
    own, batch = weights["group"], weights["scores"]
    if group >= _FEW or own <= batch:
        return None
    return (
        f"{group} documents of a query's own weigh more ({own:g}) than those of the batch "
        f"({batch:g}). Equal weights made better retrievers wherever both were measured: "
        f"--set losses.contrastive.weight={own:g} (of a stage: stages.NAME.losses…), or "
        f"{_FEW - 1} negatives and more"
    )


def _refuse(loss: Loss, need: str, given: Collection[str]) -> None:
    assert need in _NEEDS, f"nothing can provide {need!r}, which the loss {loss.name} needs"
    what, fix = _NEEDS[need]
    raise SettingsError(
        f"losses.{loss.name} needs {what}, and there are none",
        f"{fix}; or choose another loss",
        choices(loss.name, _usable(given)),
    )


def losses_with(need: str) -> list[str]:
    """The names of all losses that are computed from a tensor."""
    return [loss.name for loss in _every_loss() if need in loss.needs]


def _usable(given: Collection[str]) -> list[str]:
    return [loss.name for loss in _every_loss() if set(loss.needs) <= set(given)]


def _every_loss() -> list[Loss]:
    return [Loss(name, LOSSES.load(name), LossSettings()) for name in LOSSES.names()]


@loss("contrastive")
@softmax_over("scores")
def contrastive(scores: Tensor, targets: Tensor) -> Tensor:
    """Contrastive loss: a query's own positive against every other passage of the whole batch.

    -log softmax(scores)[target] of each query, in float32.

    Args:
        scores: [queries, passages], the passages of all queries; -inf leaves one out.
        targets: The column of each query's own positive.

    """
    return functional.cross_entropy(scores.float(), targets, reduction="none")


@loss("listwise")
@softmax_over("group")
def listwise(group: Tensor) -> Tensor:
    """List-wise loss: a query's positive against the negatives of its own group.

    -log softmax(group)[0] of each query, in float32.

    Args:
        group: [queries, group], scores of the query's own passages, its positive first.

    """
    return -group.float().log_softmax(1)[:, 0]


@loss("kl")
@softmax_over("group")
def kl(group: Tensor, teacher: Tensor) -> Tensor:
    """Distillation: the teacher's distribution over a query's own group, learnt by the student.

    KL(softmax(teacher) || softmax(group)) of each query, summed over its group, in float32.

    Args:
        group: [queries, group], the student's scores.
        teacher: [queries, group], the teacher's of the same passages.

    """
    student, taught = group.float().log_softmax(1), teacher.float().log_softmax(1)
    return functional.kl_div(student, taught, reduction="none", log_target=True).sum(1)


@loss("margin_mse")
def margin_mse(group: Tensor, teacher: Tensor) -> Tensor:
    """Margin-MSE: by how much the teacher prefers the positive, learnt by the student.

    Mean over negatives of ((s_0 - s_j) - (t_0 - t_j))² of each query, in float32.

    Args:
        group: [queries, group], the student's scores, the positive's first (arXiv 2010.02666).
        teacher: [queries, group], the teacher's of the same passages.

    """
    student, taught = (scores.float()[:, :1] - scores.float()[:, 1:] for scores in (group, teacher))
    return (student - taught).square().mean(1)


@loss("keep")
def keep(passages: Tensor, start_passages: Tensor) -> Tensor:
    """Keep: 1 - cosine of every passage's vector to the one that the encoder gave it at the start.

    The mean over each query's own passages, [queries].

    Args:
        passages: [queries, group, width], as the encoder represents them now.
        start_passages: The same passages by the encoder as it was before training.

    """
    return (1 - functional.cosine_similarity(passages, start_passages, dim=2)).mean(1)
