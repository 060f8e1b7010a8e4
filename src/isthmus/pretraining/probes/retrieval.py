"""Zero-label retrieval: a title finds its text, or a sentence the passage it was taken out of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from isthmus.config import Settings
from isthmus.pretraining.probes._base import LEXICON_TERMS, HeldOut, Probe, on_device, represent
from isthmus.pretraining.task import PretrainTask


class RetrievalSettings(Settings):
    """What plays the query, and how much of a lexicon counts."""

    query: Literal["auto", "title", "sentence"] = "auto"
    terms: int = Field(
        LEXICON_TERMS,
        ge=1,
        description="of a lexicon's weights, the largest, as an index keeps them",
    )


class Retrieval(Probe):
    """MRR@10 of inner products among the held-out passages."""

    Settings = RetrievalSettings
    settings: RetrievalSettings
    better = "higher"

    def remark(self, seen: Sequence[Mapping[str, float]]) -> str | None:
        """Whether the model was better before."""
        values = [look[""] for look in seen]
        if len(values) < 2 or not values[0] > max(values[1:]):
            return None
        return (
            "retrieval was best before training: too few steps, or the vector of another pooling "
            "is trained than the model was made for (bow on an encoder that pools by the mean: "
            "--set objectives.bag_of_words.vector=mean); --set probes.best_by=retrieval keeps the "
            "best model"
        )

    def __call__(self, task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
        """The mean over the queries; no number where the documents gave none."""
        if not held_out.queries:
            return {"": math.nan}

        def vectors(batches: list[dict[str, Tensor]]) -> Tensor:
            return torch.cat(
                [
                    represent(task, batch, held_out.vector, self.settings.terms)
                    for batch in on_device(task, batches)
                ]
            )

        scores = vectors(held_out.queries).float() @ vectors(held_out.passages).float().T
        wanted = held_out.group_of_query[:, None] == held_out.group_of_passage
        return {"": mean_reciprocal_rank(scores, wanted.to(scores.device))}


def mean_reciprocal_rank(scores: Tensor, wanted: Tensor, depth: int = 10) -> float:
    """MRR@depth; of equal scores the wanted one comes last: a collapsed vector gets nothing."""
    best = scores.masked_fill(~wanted, -torch.inf).amax(1, keepdim=True)
    # Not `>=`: what is no number is before nothing, and would put the wanted one first.
    ranks = 1 + (~(scores < best) & ~wanted).sum(1)
    return float(torch.where(ranks <= depth, 1 / ranks, 0).mean())
