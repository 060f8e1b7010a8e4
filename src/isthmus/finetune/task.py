"""A siamese encoder with its contrastive loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from isthmus.encoders.dense import DenseEncoder, pool
from isthmus.finetune.losses.contrastive import contrastive
from isthmus.training.gather import gather, rank
from isthmus.training.task import Batch, Task


class BiEncoderTask(Task):
    """Queries and passages through one backbone; negatives are those of all processes."""

    def __init__(self, encoder: DenseEncoder, group: int, temperature: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.backbone = encoder.backbone
        self.backbone.freeze_head()  # kept for the export, but no loss reaches it
        self.group = group
        self.temperature = temperature

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The queries."""
        return {"contrastive": torch.tensor(len(batch["query_ids"]))}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed loss of this process's queries against the passages of all processes."""
        settings = self.encoder.settings
        mask = batch["query_mask"]
        queries = pool(self.backbone(batch["query_ids"], mask), mask, settings)
        mask = batch["passage_mask"]
        own = pool(self.backbone(batch["passage_ids"], mask), mask, settings)
        passages, keys = gather(own), gather(batch["keys"])
        start = rank() * len(own)
        targets = start + torch.arange(len(queries), device=queries.device) * self.group
        losses = contrastive(queries, passages, targets, keys, self.temperature)
        return {"contrastive": losses.sum()}

    def loss_names(self) -> Sequence[str]:
        """The one loss."""
        return ["contrastive"]

    def save(self, folder: Path) -> None:
        """The whole encoder, as isthmus, AutoModel and sentence-transformers load it."""
        self.encoder.save(folder)

    def restore(self, folder: Path) -> None:
        """Loads what `save` wrote."""
        self.backbone.restore(folder)
