"""Masks what is tied to its neighbours: PMI-guided masking (CDMAE), on n-gram statistics."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch
import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor

from isthmus.errors import SettingsError
from isthmus.nn.randomness import normal
from isthmus.pretraining.corruption._budget import (
    MaskingSettings,
    choose_smallest,
    least,
    most_hidden,
)
from isthmus.pretraining.labels import Vocabulary
from isthmus.pretraining.parts import Column, Corruption
from isthmus.pretraining.registries import corruption
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.ngrams import NgramCounts, count_ngrams
from isthmus.text.pmi import pmi_column
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

_NOISE_STREAM = 6


class ImportanceSettings(MaskingSettings):
    """How much chance there is in the choice, and how n-grams are counted."""

    rate: float = Field(0.50, ge=0, lt=1, description="share of non-special tokens chosen; 0: none")
    sigma: float = Field(1.0, ge=0, description="of the noise on every token's importance")
    minimum_count: int = Field(1, ge=1, description="rarer n-grams count as unrelated words")
    memory: float = Field(1.0, gt=0, description="GiB that counting n-grams may use")


@corruption("importance")
class Importance(Corruption):
    """Masks what is tied to its neighbours: PMI-guided masking (CDMAE), on n-gram statistics.

    The floor(rate · n) tokens with the largest t_i ~ Normal(AMI(i), sigma).

    AMI(i) is the mean PMI of the n-grams (n = 2, 3, 4) that end in token i plus the mean PMI of
    those that begin in it, over the n-grams inside the text.
    """

    Settings = ImportanceSettings
    settings: ImportanceSettings
    requires = Corruption.requires | {"pmi"}
    streams = (_NOISE_STREAM,)
    makes = frozenset({"pmi"})

    def _where(self, setting: str) -> str:
        return f"{'corruption' if self.side == 'encoder' else 'decoder_corruption'}.{setting}"

    def beside(self, encoder: Corruption | None) -> None:
        """Refuses another threshold than the encoder's side has: a corpus has one column of PMI."""
        own = self.settings.minimum_count
        if isinstance(encoder, Importance) and own != (other := encoder.settings.minimum_count):
            name = self._where("minimum_count")
            raise SettingsError(
                f"{name} = {own}, and corruption.minimum_count = {other}: both sides share one "
                "measure of importance",
                f"--set {name}={other}",
            )

    def counts(self, corpus: TokenisedCorpus, tokenizer: Tokenizer) -> NgramCounts:
        """The n-gram statistics of a corpus, counted if need be."""
        memory = int(self.settings.memory * 2**30)
        return count_ngrams(corpus, tokenizer, memory, where=self._where("memory"))

    def columns(self, corpus: TokenisedCorpus, tokenizer: Tokenizer) -> Mapping[str, Column]:
        """The PMI of the n-grams that begin at each token."""
        counts = self.counts(corpus, tokenizer)
        return {"pmi": pmi_column(corpus, counts, tokenizer, self.settings.minimum_count)}

    def choose(self, batch: Batch, vocabulary: Vocabulary) -> Tensor:
        """True at the tokens to hide."""
        special = vocabulary.is_special(batch["input_ids"])
        maskable = ~special
        scores = importance(batch["pmi"], maskable)
        if self.settings.sigma:
            scores += normal(self.draw(batch, _NOISE_STREAM)).mul_(self.settings.sigma)
        available = maskable.sum(1, dtype=torch.float64)
        # 0.29 · 100 is 28.999999999999996 in binary; a hair more keeps the floor the decimal one.
        wanted = (available * self.settings.rate).add_(1e-9).floor_()
        wanted.clamp_(min=least(self.settings.rate))
        ordered = scores.neg_().masked_fill_(special, torch.inf)
        return choose_smallest(ordered, torch.minimum(wanted, available))

    def most_labels(self, batch: Batch) -> int | None:
        """The budget of the batch, which rounds where this takes the floor."""
        return most_hidden(batch, self.settings.rate)


def importance(pmi: Tensor, inside: Tensor) -> Tensor:
    """AMI of every token [rows, length]; `pmi[r, i, j]` is that of the (j+2)-gram beginning at i.

    NaN, or an end beyond the text, means that there is no such n-gram.
    """
    (rows, length), orders = inside.shape, pmi.shape[2]
    ends = functional.pad(inside, (0, orders)).unfold(1, orders, 1)[:, 1:]
    exists = ends & (pmi == pmi)  # NaN alone is not itself
    # Values and their counts, after as many empty places as the longest n-gram reaches.
    both = pmi.new_zeros(2, rows, orders + length, orders)
    values, counts = both[:, :, orders:]
    torch.where(exists, pmi, values, out=values)
    counts.copy_(exists)
    # What ends in a token began `order + 1` places before what begins in it: of one n, the two are
    # windows into the same numbers. All n are few additions, and on a GPU few launches.
    windows = (
        both[:, :, orders - 1 - order :, order].unfold(2, length, order + 1)
        for order in range(orders)
    )
    sums, amounts = reduce(torch.add, windows)
    ended, begun = (sums / amounts.clamp_(min=1)).unbind(1)
    total: Tensor = begun + ended
    return total
