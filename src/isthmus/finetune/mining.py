"""From rankings to negatives: what is cut off, what is removed, what is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from isthmus.config import Settings
from isthmus.records import Ranking
from isthmus.registry import Registry
from isthmus.text.corpus import TokenisedCorpus

NEGATIVES = Registry("isthmus.finetune.negatives", "source of negatives")
Rows = npt.NDArray[np.int32]


class MiningSettings(Settings):
    """Which part of a ranking negatives are drawn from."""

    num_negatives: int = Field(15, ge=1, description="per query and epoch")
    range_min: int = Field(0, ge=0, description="ranks skipped at the top")
    range_max: int = Field(1000, ge=1, description="the deepest rank considered")

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        if self.range_min >= self.range_max:
            raise ValueError("range_min must be below range_max")
        return self


def draw_negatives(
    rankings: Iterable[Ranking],
    positives: Sequence[Sequence[int]],
    corpus: TokenisedCorpus,
    settings: MiningSettings,
    epochs: int,
    seed: int,
) -> Rows:
    """The rows of each query's negatives, [queries, num_negatives · epochs].

    Drawn without replacement from the ranks between range_min and range_max, after removing the
    query's positives and documents of the same text. When all candidates had their turn they come
    again; a query with too few for a single group is given random documents as well.
    """
    needed = settings.num_negatives * epochs
    chosen = np.empty((len(positives), needed), dtype=np.int32)
    rows = corpus.row_of_id()
    for number, ranking in enumerate(rankings):
        generator = np.random.default_rng([seed, number])
        ranked = ranking.document_ids[settings.range_min : settings.range_max]
        candidates = np.array([rows[document] for document in ranked], dtype=np.int32)
        forbidden = corpus.keys[list(positives[number])]
        candidates = candidates[~np.isin(corpus.keys[candidates], forbidden)]
        drawn = list(generator.permutation(candidates)[:needed])
        while len(drawn) < settings.num_negatives:
            drawn.append(_random_other(generator, corpus, forbidden))
        chosen[number] = np.resize(drawn, needed)
    return chosen


def _random_other(
    generator: np.random.Generator, corpus: TokenisedCorpus, forbidden: npt.NDArray[np.int64]
) -> int:
    for _ in range(1000):
        row = int(generator.integers(len(corpus)))
        if corpus.keys[row] not in forbidden:
            return row
    return row  # every document is a positive; the loss leaves copies of a positive out
