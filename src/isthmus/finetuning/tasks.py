"""The losses of a batch: bi-encoders, perhaps with regularizers, and cross-encoders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from isthmus.config.output import write_json
from isthmus.encoders.cross import CrossEncoder, Pairing
from isthmus.encoders.encoder import Encoder
from isthmus.finetuning.candidates import Rows
from isthmus.finetuning.losses import Loss
from isthmus.finetuning.pairs import Group, LabelledQueries, PairExamples, TaughtScores, one_matrix
from isthmus.finetuning.regularizers import ACTIVE_TERMS, SIDES, Regularizer, active_terms
from isthmus.finetuning.similarity import group_similarities, similarities
from isthmus.nn.packing import token_places
from isthmus.text.corpus import TokenisedCorpus
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


_CONTROLLERS_FILE = "steering.json"


class SparseTask(BiEncoderTask):
    """A bi-encoder task that logs active terms and controls the weights of regularizers.

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
        super().__init__(encoder, group, temperature, losses, mini_batch_size)
        self.regularizers = list(regularizers)
        self.gathers = self.gathers or bool(self.regularizers)
        self.controllers = {
            f"{regularizer.name}/{side}": controller
            for regularizer in self.regularizers
            for side, controller in regularizer.controllers.items()
        }
        # Active terms of either side and passes, summed over this optimiser step. Changed in place
        # only, like the numbers of controllers: a captured pass reads them where they are.
        self._seen = torch.zeros(len(SIDES) + 1)

    def settle(self) -> None:
        """Caches the parameter list, and moves controllers to the encoder's device."""
        super().settle()
        device = self.encoder.backbone.word_embeddings.device
        self._seen = self._seen.to(device)
        for controller in self.controllers.values():
            controller.to(device)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """The number of queries for losses; 1 for what is a mean over the pass already."""
        means = [ACTIVE_TERMS, *(regularizer.name for regularizer in self.regularizers)]
        return super().counts(batch) | {name: torch.tensor(1) for name in means}

    def _further_sums(self, queries: Tensor, own: Tensor, passages: Tensor) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}
        everyone = gather(queries) if self.regularizers else queries
        for regularizer in self.regularizers:
            sums |= regularizer(everyone, passages)
        active = [active_terms(queries), active_terms(own)]
        sums |= {f"{ACTIVE_TERMS}/{side}": n for side, n in zip(SIDES, active, strict=True)}
        if self.controllers:
            self._seen += torch.stack([*active, torch.ones_like(active[0])])
            for name, controller in self.controllers.items():
                sums[f"{name}/weight"] = controller.weight.to(active[0])
        return sums

    def control(self, step: int, steps: int) -> None:
        """Moves the weights that have a target, after `step` of all optimiser steps."""
        if self.controllers:
            *sums, passes = self._seen
            means = gather((torch.stack(sums) / passes)[None]).mean(0)
            active = dict(zip(SIDES, means, strict=True))
            for regularizer in self.regularizers:
                regularizer.control(active, step, steps)
            self._seen.zero_()

    def weights(self, progress: float) -> Mapping[str, float | Tensor]:
        """The weights of the losses, and the current weights of the regularizers by side."""
        weights = dict(super().weights(progress))
        for regularizer in self.regularizers:
            weights |= regularizer.weights(progress)
        return weights

    def save(self, folder: Path) -> None:
        """Writes the encoder, and beside it the state of the controllers."""
        super().save(folder)
        if self.controllers:
            states = {name: controller.state() for name, controller in self.controllers.items()}
            write_json(folder / _CONTROLLERS_FILE, states)

    def restore(self, folder: Path) -> None:
        """Loads what `save` wrote."""
        super().restore(folder)
        if self.controllers:
            states = json.loads((folder / _CONTROLLERS_FILE).read_text(encoding="utf-8"))
            for name, controller in self.controllers.items():
                controller.restore(states[name])


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
