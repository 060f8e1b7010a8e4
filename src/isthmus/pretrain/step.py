"""One pre-training step: document -> view -> corruption -> backbone -> objectives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.pretrain.parts import Text, View, Vocabulary
from isthmus.pretrain.randomness import key
from isthmus.pretrain.recipe import Parts
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch, Examples, Task


class PretrainTask(Task):
    """A backbone with the objectives of a recipe."""

    def __init__(self, backbone: Backbone, tokenizer: Tokenizer, parts: Parts) -> None:
        super().__init__()
        backbone.check_tokens(len(tokenizer))
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.parts = parts
        self.vocabulary = Vocabulary(tokenizer, size=len(backbone.word_embeddings))

    def prepare(self, batch: Batch) -> Batch:
        """The batch with what the corruption provides."""
        if self.parts.corruption is None:
            return batch
        return {**batch, **self.parts.corruption(batch, self.vocabulary)}

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The items of each objective."""
        return {
            name: objective.count(batch, self.vocabulary)
            for name, objective in self.parts.objectives.items()
        }

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The sum of each objective, from one encoder pass."""
        ids = batch.get("encoder_ids", batch["input_ids"])
        step = {**batch, "hidden_states": self.backbone(ids, batch["attention_mask"])}
        sums = {}
        for name, objective in self.parts.objectives.items():
            for metric, value in objective(step, self.backbone, self.vocabulary).items():
                sums[f"{name}/{metric}" if metric else name] = value
        return sums

    def weights(self, progress: float) -> Mapping[str, float]:
        """Each objective's weight, decayed by cosine where its settings say so."""
        return {
            name: _decayed(objective.settings.weight, objective.settings.decay_to, progress)
            for name, objective in self.parts.objectives.items()
        }

    def loss_names(self) -> Sequence[str]:
        """The objectives."""
        return list(self.parts.objectives)

    def save(self, folder: Path) -> None:
        """Backbone, head and tokenizer: what AutoModel and AutoModelForMaskedLM load."""
        self.backbone.save(folder)
        self.tokenizer.save(folder)

    def restore(self, folder: Path) -> None:
        """Loads what `save` wrote."""
        self.backbone.restore(folder)


def _decayed(weight: float, decay_to: float | None, progress: float) -> float:
    if decay_to is None:
        return weight
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return weight * (decay_to + (1 - decay_to) * cosine)


class PretrainExamples(Examples):
    """The texts that a view shows of a tokenised corpus, framed and padded."""

    def __init__(
        self, corpus: TokenisedCorpus, view: View, tokenizer: Tokenizer, max_length: int, seed: int
    ) -> None:
        self.corpus = corpus
        self.view = view
        self.prefix, self.suffix = tokenizer.prefix, tokenizer.suffix
        self.pad_id = tokenizer.pad_id
        self.room = max_length - len(self.prefix) - len(self.suffix)
        self.seed = seed

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """Tokens per document as the encoder will see it."""
        return np.minimum(self.corpus.lengths, self.room)

    def __getitem__(self, position: tuple[int, int]) -> tuple[Text, int]:
        """The text of (epoch, row), and the key of its randomness."""
        epoch, row = position
        drawn = key(self.seed, epoch, row)
        return self.view(self.corpus[row], self.room, drawn), drawn

    def collate(self, examples: list[tuple[Text, Any]]) -> Batch:
        """Ids, mask, words (-1 for special tokens) and keys."""
        frame = len(self.prefix) + len(self.suffix)
        width = max(len(text.tokens) for text, _ in examples) + frame
        ids = np.full((len(examples), width), self.pad_id, dtype=np.int64)
        words = np.full((len(examples), width), -1, dtype=np.int64)
        mask = np.zeros((len(examples), width), dtype=np.int64)
        start = len(self.prefix)
        for row, (text, _) in enumerate(examples):
            end = start + len(text.tokens)
            ids[row, :start] = self.prefix
            ids[row, start:end] = text.tokens
            ids[row, end : end + len(self.suffix)] = self.suffix
            mask[row, : end + len(self.suffix)] = 1
            if len(text.words):
                # Counted from the first word shown, so that the widest row bounds the work.
                words[row, start:end] = np.where(text.words < 0, -1, text.words - _first_word(text))
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "words": torch.from_numpy(words),
            "keys": torch.tensor([drawn for _, drawn in examples], dtype=torch.int64),
        }


def _first_word(text: Text) -> int:
    inside = text.words[text.words >= 0]
    return int(inside.min()) if len(inside) else 0
