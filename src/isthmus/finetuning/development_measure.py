"""The development measure: how well held-out queries find their documents while training runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from isthmus.encoders.cross import CrossEncoder
from isthmus.encoders.encoder import Encoder, batch_tokens, pad
from isthmus.evaluation.measures import parse_measure
from isthmus.finetuning.development_set import DevelopmentSet, DevelopmentSettings, Places
from isthmus.finetuning.mining.candidates import Scores
from isthmus.progress import notice
from isthmus.records import Ranking
from isthmus.text.batches import length_sorted_batches
from isthmus.text.corpus import TokenisedCorpus
from isthmus.training.checkpoints import restoring
from isthmus.training.chunks import in_chunks
from isthmus.training.curves import report_curves
from isthmus.training.evaluation_callback import BEST, Best, Better, Looking, best_look
from isthmus.training.trainer import Trainer

TOPIC = "development"
_DEPTH = 1000  # of measures that name no cutoff


class Development:
    """Ranks the documents of a development set for its queries, as the model is at the moment."""

    better: ClassVar[Better] = "higher"
    drawn: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        model: Encoder | CrossEncoder,
        corpus: TokenisedCorpus,
        chosen: DevelopmentSet,
        settings: DevelopmentSettings,
    ) -> None:
        self.model = model
        self.corpus = corpus
        self.chosen = chosen
        self.settings = settings
        parsed = parse_measure(settings.measure, "development.measure")
        self.name = str(parsed)
        self.depth = int(parsed.params.get("cutoff", _DEPTH))
        self._settled = 0.0

    def watch(self, trainer: Trainer, settled: float = 0.0) -> None:
        """Lets a trainer measure, keep the best model, and stop when it gets no better.

        `settled` is the share of the steps after which a model is what was asked for: one with ten
        times the terms may rank better, and nobody wants it.
        """
        self._settled = settled
        # A classifier that knows nothing yet may be lucky on few queries, and then teach others.
        fresh = isinstance(self.model, CrossEncoder) and self.model.backbone.fresh_head
        best = Best(self.name, self.better, self.settings.patience, from_step=settled or int(fresh))
        trainer.add_callback(Looking(trainer, TOPIC, self, self.settings.every, best))

    def take_best(self, trainer: Trainer) -> dict[str, Any]:
        """Gives the trained task the best model's weights; returns what is worth keeping."""
        output = Path(trainer.args.output_dir)
        told = report_curves(trainer.state.log_history, TOPIC, {self.name: self}, output, TOPIC)
        counts = {"queries": len(self.chosen.queries), "documents": len(self.chosen.rows)}
        result: dict[str, Any] = {"measure": self.name, **counts}
        if (output / BEST).is_dir():  # not where the model never gave a number
            with restoring(output / BEST):
                trainer.task.restore(output / BEST)
                look = best_look(output, TOPIC)
                result |= {"step": int(look["step"]), "value": float(look[self.name])}
            told += f"\nfinal: the best by {self.name}, step {look['step']:,}"
            if self._settled:
                first = math.ceil(self._settled * trainer.state.max_steps)
                told += (
                    f", of those from step {first:,} on ({look[self.name]:.4f}; earlier ones are "
                    "not as sparse as they get)"
                )
            if look["step"] == 0:
                told += ": NOT TRAINED, the model was best before the first step"
        notice(told)
        return result

    def __call__(self) -> dict[str, float]:
        """The mean over the queries; no number where the model gives none."""
        model = self.model
        ranked = (
            self._in_pairs(model) if isinstance(model, CrossEncoder) else self._by_vectors(model)
        )
        rankings = []
        for query, (places, scores) in zip(self.chosen.queries, ranked, strict=True):
            if np.isnan(scores).any():
                return {self.name: math.nan}
            ids = [self.corpus[row].id for row in self.chosen.rows[places]]
            rankings.append(Ranking(query.id, tuple(ids), tuple(scores.tolist())))
        return {self.name: self.chosen.mean(self.name, rankings)}

    def _by_vectors(self, encoder: Encoder) -> Iterable[tuple[Places, Scores]]:
        """The best of all documents by inner product; of sparse vectors, all terms count."""
        settings, tokenizer = encoder.settings, encoder.tokenizer
        device = encoder.backbone.word_embeddings.device
        texts = [query.text for query in self.chosen.queries]
        ids, mask = pad(tokenizer.encode(texts, settings.query_max_length), tokenizer.pad_id)
        queries = in_chunks(encoder.represent_queries, ids.to(device), mask.to(device))
        scores = torch.empty(len(queries), len(self.chosen.rows), device=device)
        lengths = np.minimum(self.corpus.lengths[self.chosen.rows], settings.document_max_length)
        for batch in length_sorted_batches(lengths, batch_tokens(device)):
            tokens = (self.corpus.tokens(row) for row in self.chosen.rows[batch])
            framed = [tokenizer.frame(row, settings.document_max_length) for row in tokens]
            vectors = encoder.represent(framed)
            with torch.autocast(device.type, enabled=False):  # bf16 would round scores to ties
                scores[:, batch] = queries @ vectors.T
        best = scores.topk(min(self.depth, len(self.chosen.rows)))
        return zip(best.indices.cpu().numpy(), best.values.cpu().numpy(), strict=True)

    def _in_pairs(self, model: CrossEncoder) -> Iterator[tuple[Places, Scores]]:
        """Each query's own candidates by the score of the pair."""
        texts = [query.text for query in self.chosen.queries]
        encodings = model.tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)
        own = self.chosen.own
        queries = [
            encoding.ids for encoding, places in zip(encodings, own, strict=True) for _ in places
        ]
        rows = self.chosen.rows[np.concatenate(own)]
        scores = model.score_tokens(queries, [self.corpus.tokens(row) for row in rows])
        ends = np.cumsum([len(places) for places in own])
        yield from zip(own, np.split(scores, ends[:-1]), strict=True)
