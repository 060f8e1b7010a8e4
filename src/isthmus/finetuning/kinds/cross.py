"""Cross-encoders: query and passage read together; they re-rank, and teach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from isthmus.encoders.cross import CrossEncoder, CrossSettings
from isthmus.encoders.encoder import TextModel
from isthmus.finetuning.cross_encoder_task import CrossEncoderTask, CrossExamples
from isthmus.finetuning.development import DevelopmentSet, Places
from isthmus.finetuning.kinds._base import Kind
from isthmus.finetuning.losses._base import Loss
from isthmus.finetuning.mining.candidates import Rows, Scores
from isthmus.finetuning.pairs import LabelledQueries, TaughtScores
from isthmus.nn.classifier import load_classifier
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer


class Cross(Kind):
    """Trains a CrossEncoder on each query's own group."""

    foreign = (
        "pooling", "similarity", "sparse", "regularizers", "start_terms", "temperature",
        "pseudo_queries", "training_max_length", "merge", "query_prompt", "document_prompt",
        "include_prompt", "truncate_dim",
    )  # fmt: skip
    usual_loss = "listwise"
    gives = frozenset[str]()
    retrieves = False
    Settings = CrossSettings

    def load(self, folder: str, dropout: float | None, seed: int) -> CrossEncoder:
        """The sequence classifier of the folder; one without a head of one label gets a new one."""
        tokenizer = Tokenizer.load(folder)
        classifier = load_classifier(folder, "add", dropout, seed)
        return CrossEncoder(classifier, tokenizer, self.settings, folder)

    def task(
        self, encoder: CrossEncoder, group: int, losses: Sequence[Loss], mini_batch_size: int | None
    ) -> CrossEncoderTask:
        """A score per pair of a query and a passage of its group."""
        return CrossEncoderTask(encoder, group, losses, mini_batch_size)

    def examples(
        self,
        encoder: CrossEncoder,
        labelled: LabelledQueries,
        negatives: Rows | None,
        group: int,
        corpus: TokenisedCorpus,
        taught: TaughtScores | None,
    ) -> CrossExamples:
        """Each query joined with its positive and with each of its negatives."""
        assert negatives is not None, "every loss of a cross-encoder needs the group"
        return CrossExamples(labelled, negatives, group, corpus, encoder, taught)

    def rank(
        self, encoder: CrossEncoder, corpus: TokenisedCorpus, chosen: DevelopmentSet, depth: int
    ) -> Iterator[tuple[Places, Scores]]:
        """For each query its own candidates, with the scores of the pairs."""
        tokens = encoder.tokens([query.text for query in chosen.queries])
        queries = [query for query, places in zip(tokens, chosen.own, strict=True) for _ in places]
        rows = chosen.rows[np.concatenate(chosen.own)]
        scores = encoder.score_tokens(queries, [corpus.tokens(row) for row in rows])
        ends = np.cumsum([len(places) for places in chosen.own])
        yield from zip(chosen.own, np.split(scores, ends[:-1]), strict=True)

    def first_step(self, encoder: TextModel) -> float:
        """1 with a new head: an untrained one may be lucky on few queries, and then teach."""
        return int(encoder.backbone.fresh_head)
