"""Trains a re-ranker: each query is read together with each passage of its own group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from isthmus.encoders.cross import CrossEncoder, Pairing
from isthmus.finetuning.losses import Loss
from isthmus.finetuning.mining.candidates import Rows
from isthmus.finetuning.pairs import Group, LabelledQueries, PairExamples, TaughtScores
from isthmus.nn.packing import token_places
from isthmus.text.corpus import TokenisedCorpus
from isthmus.training.parallel import in_chunks
from isthmus.training.task import Batch, Task


class CrossEncoderTask(Task):
    """Scores of a query's own group, positive first; no passage is a negative of another query."""

    def __init__(
        self,
        encoder: CrossEncoder,
        group: int,
        losses: Sequence[Loss],
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        assert group > 1, "a positive alone cannot be ranked"
        self.encoder = encoder
        self.trained = nn.ModuleList(encoder.trained)
        self.group = group
        self.losses = list(losses)
        self.mini_batch_size = mini_batch_size

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The number of queries, for each loss."""
        queries = torch.tensor(len(batch["ids"]) // self.group)
        return {loss.name: queries for loss in self.losses}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Each loss, summed over the queries."""
        # Ids and segments stacked: chunks cut and reorder both together.
        both = torch.stack([batch["ids"], batch["segments"]], dim=2)
        tokens = batch.get("tokens") if self.encoder.backbone.leaves_padding_out else None
        scores = in_chunks(self._scores, both, batch["mask"], self.mini_batch_size, tokens)
        given = {"group": scores.view(-1, self.group)}
        if "teacher" in batch:
            given["teacher"] = batch["teacher"]
        with torch.autocast(scores.device.type, enabled=False):
            return {loss.name: loss(given).sum() for loss in self.losses}

    def _scores(self, both: Tensor, mask: Tensor, tokens: Tensor | None = None) -> Tensor:
        ids, segments = both.unbind(2)
        return self.encoder.represent(ids, mask, segments, tokens)

    def weights(self, progress: float) -> Mapping[str, float]:
        """The weights of the losses, from their settings."""
        return {loss.name: loss.settings.weight for loss in self.losses}

    def save(self, folder: Path) -> None:
        """Writes the cross-encoder as isthmus, transformers and sentence-transformers load it."""
        self.encoder.save(folder)

    def restore(self, folder: Path) -> None:
        """Loads what `save` wrote."""
        self.encoder.restore(folder)


class CrossExamples(PairExamples):
    """Groups whose query is joined with each passage into one row of tokens."""

    def __init__(
        self,
        labelled: LabelledQueries,
        negatives: Rows,
        group: int,
        corpus: TokenisedCorpus,
        encoder: CrossEncoder,
        teacher: TaughtScores | None = None,
    ) -> None:
        tokenizer, settings = encoder.tokenizer, encoder.settings
        super().__init__(
            labelled, negatives, group, corpus, tokenizer, settings, teacher, alike=False
        )
        # Without special tokens, and uncut: how much fits depends on the passage too.
        self.query_tokens = encoder.tokens([query.text for query in labelled.queries])
        self.pairing: Pairing = encoder.pairing  # not the encoder: workers need no weights

    def collate(self, examples: list[Group]) -> Batch:
        """Ids, mask, places of tokens and segments of every pair, a whole group per query."""
        queries = [example.query for example in examples for _ in example.rows]
        passages = [self.corpus.tokens(row) for example in examples for row in example.rows]
        ids, mask, segments = self.pairing.pad(queries, passages)
        tokens = token_places(mask)
        batch = {"ids": ids, "mask": mask, "tokens": tokens, "segments": segments}
        if self.teacher is not None:
            batch["teacher"] = torch.tensor([example.teacher for example in examples])
        return batch
