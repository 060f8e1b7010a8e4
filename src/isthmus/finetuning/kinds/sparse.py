"""Sparse encoders: a weight per term of the vocabulary, kept few by regularizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from isthmus.encoders.encoder import Encoder, TextModel
from isthmus.encoders.router import load_query_terms
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.finetuning.kinds._vectors import Vectors
from isthmus.finetuning.losses._base import Loss
from isthmus.finetuning.pairs import PairExamples
from isthmus.finetuning.regularizers._base import ControlWeights, regularizers, settled
from isthmus.finetuning.sparsity import (
    ACTIVE_TERMS,
    IndexedTerms,
    SparseTask,
    StopWhenEmpty,
    check_targets,
    start_with,
)
from isthmus.nn.backbone import Backbone
from isthmus.progress import notice
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.trainer import Trainer


class Sparse(Vectors):
    """Trains a SparseEncoder."""

    foreign = ("pooling", "similarity", "include_prompt", "truncate_dim")
    form: ClassVar = {
        "form": "sparse.form", "activation": "sparse.activation", "query": "sparse.query",
        "pooling_strategy": "sparse.pooling_strategy",
    }  # fmt: skip
    Settings = SparseSettings

    def __init__(self, chosen: Mapping[str, Any]) -> None:
        super().__init__({**chosen, **chosen["sparse"]})
        self.regularizers = regularizers(chosen["regularizers"])
        self.start_terms: int | None = chosen["start_terms"]

    def encoder(
        self, backbone: Backbone, tokenizer: Tokenizer, settings: SparseSettings, folder: str
    ) -> SparseEncoder:
        """The encoder around a backbone, with the weights of query terms if the folder has any."""
        encoder = SparseEncoder(backbone, tokenizer, settings, folder)
        terms = encoder.query_terms
        if terms is not None and load_query_terms(terms, tokenizer, folder):
            notice(f"the weights of query terms continue from {folder}")
        return encoder

    def prepare(self, encoder: SparseEncoder, corpus: TokenisedCorpus, seed: int) -> None:
        """Lowers the head's bias where documents would begin with too many terms."""
        if self.start_terms is not None:
            start_with(encoder, corpus, self.start_terms, seed)

    def task(
        self, encoder: Encoder, group: int, losses: Sequence[Loss], mini_batch_size: int | None
    ) -> SparseTask:
        """Queries and passages through one encoder, with regularizers of their vectors."""
        fresh = [replace(regularizer) for regularizer in self.regularizers]  # new controllers
        return SparseTask(encoder, group, self.temperature, losses, fresh, mini_batch_size)

    def first_step(self, encoder: TextModel) -> float:
        """The share of the steps after which vectors are as sparse as they are going to be."""
        return settled(self.regularizers)

    def watch(self, trainer: Trainer, queries: Sequence[str]) -> Callable[[], dict[str, Any]]:
        """Controls the regularizers' weights; its results are the terms of an average text."""
        task, examples = trainer.task, trainer.examples
        assert isinstance(task, SparseTask)
        assert isinstance(examples, PairExamples)
        trainer.add_callback(StopWhenEmpty())
        terms = IndexedTerms(task.encoder, examples, queries, trainer.settings.seed, trainer)
        trainer.add_callback(ControlWeights(task, terms.ratios))

        def results() -> dict[str, Any]:
            active = {side: float(number) for side, number in terms().items()}
            check_targets(task.regularizers, active)
            return {ACTIVE_TERMS: active}

        return results
