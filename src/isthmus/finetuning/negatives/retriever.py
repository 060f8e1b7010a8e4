"""Negatives from a dense or sparse retriever: unjudged documents that it ranks high."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import Field

from isthmus.config.encoding import EncodingChoice
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.encoders import load_encoder
from isthmus.finetuning.mining.candidates import MiningSettings, Ranker, TrainingCorpus, answers
from isthmus.finetuning.negatives._base import Source
from isthmus.indexes.manifest import SparseSettings
from isthmus.records import Query, Ranking


class RetrieverSettings(MiningSettings, EncodingChoice):
    """Which candidates are kept, the model that ranks them, and how it encodes."""

    model: str = Field(description="a run of isthmus, a folder or hub name, package:NAME")
    range_max: int = Field(200, ge=1, description="the deepest rank considered")


class Retriever(Source):
    """Ranks the corpus by an encoder, which reads titles as it was trained to."""

    Settings = RetrieverSettings
    where = "negatives.model"  # the setting that names the model, for what is wrong with it

    def origin(self) -> str:
        """A digest of the weights, or a hub name."""
        model: str = self.settings.model
        return model_fingerprint(model_folder(model, self.where)) or model

    def open(self, corpus: TrainingCorpus) -> Ranker:
        """The encoder over an index in the cache."""
        model: str = self.settings.model
        chosen = self.settings.chosen()
        with named_at(self.where):
            fingerprint = load_encoder(model, chosen).fingerprint
        # Not quantised: a margin is a difference of the encoder's own scores.
        changed = {**chosen, "bm25": False, "sparse": SparseSettings(weights="float")}

        def rank(queries: Sequence[Query], depth: int) -> Iterator[Ranking]:
            return answers(corpus.searcher(fingerprint, model, **changed), queries, depth)

        return Ranker(fingerprint, rank)
