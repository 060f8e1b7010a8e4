"""A siamese encoder with its losses, and what keeps its vectors sparse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from isthmus.config.output import write_json
from isthmus.encoders.encoder import Encoder
from isthmus.finetuning.losses._base import Loss
from isthmus.finetuning.pairs import one_matrix
from isthmus.finetuning.regularizers._base import SIDES, Regularizer
from isthmus.finetuning.similarity import group_similarities, similarities
from isthmus.finetuning.sparsity.active_terms import ACTIVE_TERMS, active_terms
from isthmus.training.chunks import in_chunks
from isthmus.training.gather import gather, rank
from isthmus.training.task import Batch, Task

_STEERING_FILE = "steering.json"


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
        losses: Sequence[Loss],
        regularizers: Sequence[Regularizer] = (),
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
        self.regularizers = list(regularizers)
        self.steering = {
            f"{regularizer.name}/{side}": steering
            for regularizer in self.regularizers
            for side, steering in regularizer.steering.items()
        }
        # Active terms of either side and passes, summed over this optimiser step. It stays where it
        # is, and so do the numbers of steering: a captured pass finds them there.
        self._seen = torch.zeros(len(SIDES) + 1)
        self.mini_batch_size = mini_batch_size
        self.capturable = mini_batch_size is None

    def settle(self) -> None:
        """Brings what steers to where the encoder is."""
        super().settle()
        device = self.encoder.backbone.word_embeddings.device
        self._seen = self._seen.to(device)
        for steering in self.steering.values():
            steering.to(device)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The queries; 1 for what is a mean of the pass already."""
        means = [regularizer.name for regularizer in self.regularizers]
        if self.encoder.uses_head:
            means.append(ACTIVE_TERMS)
        queries = torch.tensor(len(batch["query_ids"]))
        counts = {loss.name: queries for loss in self.losses}
        return counts | {name: torch.tensor(1) for name in means}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed loss of this process's queries against the passages of all processes."""
        queries, own = self._represented(batch)
        # Mixed precision ends here: bf16 would round a score of 50 to a quarter.
        with torch.autocast(queries.device.type, enabled=False):
            passages = gather(own) if self.regularizers or "scores" in self.needs else own
            given = self._given(queries, own, passages, batch)
            sums = {loss.name: loss(given).sum() for loss in self.losses}
            everyone = gather(queries) if self.regularizers else queries
            for regularizer in self.regularizers:
                sums |= regularizer(everyone, passages)
        if self.encoder.uses_head:
            active = [active_terms(queries), active_terms(own)]
            sums |= {f"{ACTIVE_TERMS}/{side}": n for side, n in zip(SIDES, active, strict=True)}
            if self.steering:
                self._seen += torch.stack([*active, torch.ones_like(active[0])])
                for name, steering in self.steering.items():
                    sums[f"{name}/weight"] = steering.weight.to(active[0])
        return sums

    def _represented(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The vectors of queries and of passages, in one pass where one model reads both.

        Half as many kernels then, which the host of a GPU needs longer to launch than they take.
        """
        encoder, size = self.encoder, self.mini_batch_size
        tokens = batch.get("tokens") if encoder.backbone.leaves_padding_out else None
        ids = [batch["query_ids"], batch["passage_ids"]]
        masks = [batch["query_mask"], batch["passage_mask"]]
        if encoder.alike:
            both = one_matrix(ids, encoder.tokenizer.pad_id), one_matrix(masks, 0)
            vectors = in_chunks(encoder.represent_documents, *both, size, tokens)
            queries, passages = torch.split(vectors, [len(side) for side in ids])
        else:
            queries = encoder.represent_queries(ids[0], masks[0])  # looked up, not computed
            passages = in_chunks(encoder.represent_documents, ids[1], masks[1], size, tokens)
        return queries, passages

    def _given(
        self, queries: Tensor, own: Tensor, passages: Tensor, batch: Batch
    ) -> dict[str, Tensor]:
        """What the losses need, and no more."""
        given = {}
        if "scores" in self.needs:
            places = torch.arange(len(queries), device=queries.device)
            given["targets"] = rank() * len(own) + places * self.group
            given["scores"] = similarities(
                queries, passages, given["targets"], gather(batch["keys"]), self.temperature
            )
        if "group" in self.needs:
            given["group"] = group_similarities(queries, own, self.temperature)
        if "teacher" in self.needs:
            given["teacher"] = batch["teacher"]
        return given

    def steer(self, step: int, steps: int) -> None:
        """Moves the weights that have a target, after so many of all optimiser steps."""
        if self.steering:
            *sums, passes = self._seen
            means = gather((torch.stack(sums) / passes)[None]).mean(0)
            active = dict(zip(SIDES, means, strict=True))
            for regularizer in self.regularizers:
                regularizer.steer(active, step, steps)
            self._seen.zero_()

    def weights(self, progress: float) -> Mapping[str, float | Tensor]:
        """The losses' own, and what the regularizers' weights have grown to."""
        weights: dict[str, float | Tensor] = {
            loss.name: loss.settings.weight for loss in self.losses
        }
        for regularizer in self.regularizers:
            weights |= regularizer.weights(progress)
        return weights

    def loss_names(self) -> Sequence[str]:
        """The losses, and every regularizer by side."""
        return list(self.weights(1.0))

    def save(self, folder: Path) -> None:
        """The whole encoder, as isthmus, AutoModel and sentence-transformers load it.

        Beside it how far weights were steered, to go on from there.
        """
        self.encoder.save(folder)
        if self.steering:
            states = {name: steering.state() for name, steering in self.steering.items()}
            write_json(folder / _STEERING_FILE, states)

    def restore(self, folder: Path) -> None:
        """Loads what `save` wrote."""
        self.encoder.restore(folder)
        if self.steering:
            states = json.loads((folder / _STEERING_FILE).read_text(encoding="utf-8"))
            for name, steering in self.steering.items():
                steering.restore(states[name])
