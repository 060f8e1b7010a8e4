"""A bi-encoder with its losses: queries and passages become vectors, which are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from isthmus.encoders.encoder import Encoder
from isthmus.finetuning.losses import Loss
from isthmus.finetuning.pairs import one_matrix
from isthmus.finetuning.similarity import group_similarities, similarities
from isthmus.training.parallel import gather, in_chunks, rank
from isthmus.training.task import Batch, Task


class BiEncoderTask(Task):
    """Queries and passages through one encoder; the passages of all processes are negatives."""

    def __init__(
        self,
        encoder: Encoder,
        group: int,
        temperature: float,
        losses: Sequence[Loss],
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.trained = nn.ModuleList(encoder.trained)
        if not encoder.uses_head:
            encoder.backbone.freeze_head()  # kept for the export, but no loss reaches it
        self.group = group
        self.temperature = temperature
        self.losses = list(losses)
        self.needs = set(chain.from_iterable(loss.needs for loss in losses))
        self.gathers = "scores" in self.needs  # whether passages of other processes are needed
        self.mini_batch_size = mini_batch_size
        # Not a part of the module: its weights are neither trained nor saved.
        self._start = [_frozen(encoder)] if "start_passages" in self.needs else []
        self.capturable = mini_batch_size is None and not encoder.reads_apart

    def settle(self) -> None:
        """Caches the parameter list, and moves the encoder of the start to the same device."""
        super().settle()
        for start in self._start:
            for module in start.trained:
                module.to(self.encoder.backbone.word_embeddings.device)
            start.backbone.use_packing = self.encoder.backbone.use_packing

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The number of queries, for each loss."""
        queries = torch.tensor(len(batch["query_ids"]))
        return {loss.name: queries for loss in self.losses}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Each loss, summed over this process's queries, against the passages of all processes."""
        queries, own = self.represented(self.encoder, batch)
        start = None
        if self._start:
            with torch.no_grad():
                start = self.represented(self._start[0], batch)[1]
        # Mixed precision ends here: bf16 would round a score of 50 to a quarter.
        with torch.autocast(queries.device.type, enabled=False):
            passages = gather(own) if self.gathers else own
            given = self._given(queries, own, passages, batch)
            if start is not None:
                given["start_passages"] = start.view(len(queries), self.group, -1)
            sums = {loss.name: loss(given).sum() for loss in self.losses}
            return sums | self._further_sums(queries, own, passages)

    def _further_sums(self, queries: Tensor, own: Tensor, passages: Tensor) -> dict[str, Tensor]:
        """What a subclass adds to the losses, from the vectors of one pass."""
        return {}

    def represented(self, encoder: Encoder, batch: Batch) -> tuple[Tensor, Tensor]:
        """The vectors of queries and of passages, in one pass where one model reads both.

        One pass halves the number of kernel launches, which bound the speed on a GPU.
        """
        size = self.mini_batch_size
        tokens = batch.get("tokens") if encoder.backbone.leaves_padding_out else None
        ids = [batch["query_ids"], batch["passage_ids"]]
        masks = [batch["query_mask"], batch["passage_mask"]]
        if encoder.alike:
            both = one_matrix(ids, encoder.tokenizer.pad_id), one_matrix(masks, 0)
            vectors = in_chunks(encoder.represent_documents, *both, size, tokens)
            queries, passages = torch.split(vectors, [len(side) for side in ids])
        else:
            if encoder.reads_apart:
                queries = in_chunks(encoder.represent_queries, ids[0], masks[0], size)
            else:
                queries = encoder.represent_queries(ids[0], masks[0])  # looked up, not computed
            passages = in_chunks(encoder.represent_documents, ids[1], masks[1], size, tokens)
        return queries, passages

    def _given(
        self, queries: Tensor, own: Tensor, passages: Tensor, batch: Batch
    ) -> dict[str, Tensor]:
        """The tensors that the losses need, by name."""
        given = {}
        if "scores" in self.needs:
            places = torch.arange(len(queries), device=queries.device)
            given["targets"] = rank() * len(own) + places * self.group
            documents = gather(batch["documents"]) if "documents" in batch else None
            given["scores"] = similarities(
                queries,
                passages,
                given["targets"],
                gather(batch["keys"]),
                self.temperature,
                documents,
            )
        if "group" in self.needs:
            given["group"] = group_similarities(queries, own, self.temperature)
        if "passages" in self.needs:
            given["passages"] = own.view(len(queries), self.group, -1)
        if "teacher" in self.needs:
            given["teacher"] = batch["teacher"]
        return given

    def weights(self, progress: float) -> Mapping[str, float | Tensor]:
        """The weights of the losses, from their settings."""
        return {loss.name: loss.settings.weight for loss in self.losses}

    def save(self, folder: Path) -> None:
        """Writes the encoder as isthmus, AutoModel and sentence-transformers load it."""
        self.encoder.save(folder)

    def restore(self, folder: Path) -> None:
        """Loads what `save` wrote."""
        self.encoder.restore(folder)


def _frozen(encoder: Encoder) -> Encoder:
    """A copy of an encoder as it is now, without dropout and gradients."""
    copy = deepcopy(encoder)
    for module in copy.trained:
        module.eval().requires_grad_(False)
    return copy
