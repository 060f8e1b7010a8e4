"""The active terms of texts that were hardly trained on: what an index would hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.encoders.encoder import Encoder, pad
from isthmus.finetuning.pairs import PairExamples
from isthmus.finetuning.regularizers._base import SIDES
from isthmus.finetuning.sparsity.active_terms import active_terms
from isthmus.training.chunks import in_chunks
from isthmus.training.evaluation_callback import evaluated
from isthmus.training.trainer import Trainer

_TEXTS = 256  # of either side


class IndexedTerms:
    """Counts the terms of some documents of the corpus and of some queries.

    A passage that was trained on many times gets more terms than a new one, and more with dropout
    than without; an index holds mostly new texts, encoded without dropout.
    """

    def __init__(
        self,
        encoder: Encoder,
        examples: PairExamples,
        queries: Sequence[str],
        seed: int,
        trainer: Trainer,
    ) -> None:
        self._encoder = encoder
        self._trainer = trainer
        generator = np.random.default_rng([seed, 3])

        def some(number: int) -> list[int]:
            return sorted(generator.permutation(number)[:_TEXTS].tolist())

        corpus, limit = examples.corpus, encoder.settings.document_max_length

        def framed(rows: Sequence[int]) -> list[Any]:
            return [encoder.tokenizer.frame(corpus.tokens(row), limit) for row in rows]

        sampled = [queries[number] for number in some(len(queries))]
        self._indexed = encoder.tokenise_queries(sampled), framed(some(len(corpus)))
        groups = [examples[0, number] for number in some(len(examples))]
        # One passage of each, positives and negatives as often as training sees them.
        shown = [group.rows[place % len(group.rows)] for place, group in enumerate(groups)]
        self._shown = [group.query for group in groups], framed(shown)

    def __call__(self) -> dict[str, Tensor]:
        """The mean of each side with the current model, as tensors on its device."""
        return evaluated(self._trainer, lambda: self._terms(self._indexed))

    def ratios(self) -> dict[str, Tensor]:
        """By side, terms of indexed texts per term of training texts in training mode."""
        return evaluated(self._trainer, self._ratios)

    def _ratios(self) -> dict[str, Tensor]:
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):
            indexed = self._terms(self._indexed)
            self._trainer.task.train()
            shown = self._terms(self._shown)
        return {side: indexed[side] / shown[side].clamp(min=1) for side in SIDES}

    def _terms(self, texts: tuple[Sequence[Any], Sequence[Any]]) -> dict[str, Tensor]:
        encoder = self._encoder
        device = encoder.backbone.word_embeddings.device
        found = {}
        represents = encoder.represent_queries, encoder.represent_documents
        for side, represent, rows in zip(SIDES, represents, texts, strict=True):
            ids, mask = pad(rows, encoder.tokenizer.pad_id)
            found[side] = active_terms(in_chunks(represent, ids.to(device), mask.to(device)))
        return found
