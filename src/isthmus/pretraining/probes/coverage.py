"""Input token coverage: how many of a text's tokens are among the first k that its vector names."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from isthmus.config import Settings
from isthmus.pretraining.objectives import token_sets
from isthmus.pretraining.probes._base import Probe, vocabulary_logits
from isthmus.pretraining.probes._held_out import HeldOut, Rows
from isthmus.pretraining.registries import probe
from isthmus.pretraining.task import PretrainTask
from isthmus.text.corpus import TokenisedCorpus

_FREQUENCY_DOCUMENTS = 20_000


class CoverageSettings(Settings):
    """How many tokens count."""

    k: int = Field(64, ge=1, description="tokens that the vector may name")
    curve: list[Annotated[int, Field(ge=1)]] = Field(
        [], description="other numbers of tokens to measure it at too, for a curve by k"
    )


@probe("coverage")
class Coverage(Probe):
    """Input token coverage: the share of a text's tokens in the first k that its vector names.

    Mean of |top-k(head(H_0)) ∩ T| / |T|, T the set of the text's tokens.

    Two lines to read it by: `constant`, what the k most frequent tokens of the corpus reach for
    every text, and `ceiling`, the most that k tokens can. At each k of `curve` all three are
    measured again, as `at_k`, `constant_at_k` and `ceiling_at_k`.
    """

    Settings = CoverageSettings
    settings: CoverageSettings
    better = "higher"
    drawn = ("constant", "ceiling")

    def prepare(self, task: PretrainTask, held_out: HeldOut, decides: bool) -> None:
        """Ranks the tokens by the number of training documents that hold them."""
        examples = held_out.examples
        self.frequent = ranked_tokens(examples.corpus, examples.rows, task.vocabulary.special.cpu())

    def remark(self, seen: Sequence[Mapping[str, float]]) -> str | None:
        """Whether the vector says more than would be true of any text."""
        reached, constant = seen[-1][""], seen[-1].get("constant", math.nan)
        if not reached < constant:
            return None
        return (
            f"coverage ended at {reached:.4f}, below the {constant:.4f} of one and the same list, "
            f"the {self.settings.k} most frequent tokens: the vector names fewer of a text's words "
            "than that list would, so it has not learnt the texts yet: train on (of the recipes, "
            "bow gets there soonest: it trains the vector's words)"
        )

    def __call__(self, task: PretrainTask, held_out: HeldOut) -> dict[str, float]:
        """The means over the texts that have a bag."""
        wanted = {"": self.settings.k, **{f"at_{k}": k for k in self.settings.curve}}
        most = max(wanted.values())
        sums: dict[str, float] = defaultdict(float)
        count = 0
        for batch, logits in vocabulary_logits(task, held_out):
            bags = token_sets(batch["input_ids"], task.vocabulary.special)
            shares = {"": covered(logits, bags, most)}
            shares |= reading_lines(bags, self.frequent, most)
            for line, curves in shares.items():
                totals = curves.sum(0).tolist()
                for place, k in wanted.items():
                    sums["_".join(filter(None, (line, place)))] += totals[min(k, len(totals)) - 1]
            count += int(bags.any(1).sum())
        return {name: total / max(count, 1) for name, total in sums.items()}


def covered(logits: Tensor, bags: Tensor, k: int) -> Tensor:
    """|top-j(logits) ∩ T| / |T| for j = 1 … k, [rows, k]; 0 for a row whose set T is empty.

    A logit of minus infinity names nothing.
    """
    values, named = logits.topk(min(k, logits.shape[1]))
    return _shares(bags.gather(1, named) & values.isfinite(), bags)


def reading_lines(bags: Tensor, frequent: Tensor, k: int) -> dict[str, Tensor]:
    """What the lists of the j most frequent tokens cover, and the most that j tokens can."""
    most = min(k, bags.shape[1])
    numbers = torch.arange(most, device=bags.device)
    return {
        "constant": _shares(bags[:, frequent[:k].to(bags.device)], bags),
        "ceiling": _shares(numbers < bags.sum(1, keepdim=True), bags),
    }


def _shares(hits: Tensor, bags: Tensor) -> Tensor:
    return hits.cumsum(1) / bags.sum(1, keepdim=True).clamp(min=1)


def ranked_tokens(corpus: TokenisedCorpus, rows: Rows, special: Tensor) -> Tensor:
    """All token ids, those in most of a sample of these documents first, special ones last."""
    sample = rows[:: max(1, len(rows) // _FREQUENCY_DOCUMENTS)]
    sets = [np.unique(corpus.tokens(row)) for row in sample]
    ids = torch.from_numpy(np.concatenate(sets).astype(np.int64))
    counts = torch.bincount(ids, minlength=len(special)).masked_fill(special, -1)
    return counts.argsort(descending=True, stable=True)
