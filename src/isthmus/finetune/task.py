"""A siamese encoder with its contrastive loss, and what keeps its vectors sparse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from isthmus.encoders.encoder import Encoder
from isthmus.finetune.active_terms import ACTIVE_TERMS, active_terms
from isthmus.finetune.losses.contrastive import contrastive
from isthmus.finetune.regularization import Regularizer
from isthmus.training.gather import gather, rank
from isthmus.training.task import Batch, Task


class BiEncoderTask(Task):
    """Queries and passages through one encoder; negatives are those of all processes.

    A regularizer sees the texts of one pass on all processes: it counts as one item per pass and
    process, so the step's value is the mean over its passes, however many processes share them.
    Gradient accumulation therefore does not widen what it sees. For L1 that changes nothing; FLOPS
    of the whole step would be lower than the mean of its passes (a square of means), the more so
    the fewer texts a pass has.
    """

    def __init__(
        self,
        encoder: Encoder,
        group: int,
        temperature: float,
        regularizers: Sequence[Regularizer] = (),
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.trained = nn.ModuleList(encoder.trained)
        if not encoder.uses_head:
            encoder.backbone.freeze_head()  # kept for the export, but no loss reaches it
        self.group = group
        self.temperature = temperature
        self.regularizers = list(regularizers)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The queries; 1 for what is a mean of the pass already."""
        means = [regularizer.name for regularizer in self.regularizers]
        if self.encoder.uses_head:
            means.append(ACTIVE_TERMS)
        return {
            "contrastive": torch.tensor(len(batch["query_ids"])),
            **{name: torch.tensor(1) for name in means},
        }

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed loss of this process's queries against the passages of all processes."""
        queries = self.encoder.represent_queries(batch["query_ids"], batch["query_mask"])
        own = self.encoder.represent_documents(batch["passage_ids"], batch["passage_mask"])
        passages, keys = gather(own), gather(batch["keys"])
        start = rank() * len(own)
        targets = start + torch.arange(len(queries), device=queries.device) * self.group
        # Mixed precision ends here: bf16 would round a score of 50 to a quarter.
        with torch.autocast(queries.device.type, enabled=False):
            losses = contrastive(queries, passages, targets, keys, self.temperature)
            sums = {"contrastive": losses.sum()}
            everyone = gather(queries) if self.regularizers else queries
            for regularizer in self.regularizers:
                sums |= regularizer(everyone, passages)
        if self.encoder.uses_head:
            sums[f"{ACTIVE_TERMS}/queries"] = active_terms(queries)
            sums[f"{ACTIVE_TERMS}/documents"] = active_terms(own)
        return sums

    def weights(self, progress: float) -> Mapping[str, float]:
        """1 for the contrastive loss, and what the regularizers' weights have grown to."""
        weights = {"contrastive": 1.0}
        for regularizer in self.regularizers:
            weights |= regularizer.weights(progress)
        return weights

    def loss_names(self) -> Sequence[str]:
        """The contrastive loss, and every regularizer's by side."""
        return list(self.weights(1.0))

    def save(self, folder: Path) -> None:
        """The whole encoder, as isthmus, AutoModel and sentence-transformers load it."""
        self.encoder.save(folder)

    def restore(self, folder: Path) -> None:
        """Loads what `save` wrote."""
        self.encoder.restore(folder)
