"""A cross-encoder as teacher: one trained here, or any sequence classifier of one label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import Field

from isthmus.config import Settings
from isthmus.config.cache import cache_folder
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.encoders import cross
from isthmus.encoders.loader import load_reranker
from isthmus.finetuning.mining.candidates import NOTHING, Rows, Scores, TrainingCorpus
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.finetuning.score_table import Digests, ScoreStore, digests
from isthmus.finetuning.teachers._base import INSTEAD, Teacher, TeacherSource
from isthmus.progress import Bar, notice
from isthmus.text.corpus import TokenisedCorpus, tokenise

_AT_ONCE = 1 << 13  # pairs: enough to batch by length, few enough to see progress


class CrossEncoderSettings(Settings):
    """The model of the teacher."""

    model: str = Field(description="a re-ranker: a run of isthmus, a folder or hub name")


class CrossEncoder(TeacherSource):
    """Scores queries and documents with a cross-encoder; scores are cached by corpus."""

    Settings = CrossEncoderSettings

    def origin(self) -> str:
        """A digest of the weights, or a hub name."""
        model: str = self.settings.model
        return model_fingerprint(model_folder(model, "teacher.model")) or model

    def open(self, corpus: TrainingCorpus) -> Teacher:
        """The model over the documents in its own tokens, with its earlier scores."""
        with named_at("teacher.model", INSTEAD):
            model = load_reranker(self.settings.model, where="teacher.model")
        if model.settings.titles != corpus.titles:
            notice(
                f"the teacher {model.name} is used to titles={model.settings.titles}; it reads "
                f"what its student reads, titles={corpus.titles}"
            )
        tokenised = tokenise(
            corpus.collection.documents(),
            corpus.fingerprint,
            model.tokenizer.serialised,
            corpus.titles,
        )
        assert len(tokenised) == len(corpus.tokenised), "not the same documents"
        identity = "\0".join([model.fingerprint, corpus.fingerprint, str(corpus.titles)])
        folder = cache_folder() / "teachers" / xxhash.xxh3_128_hexdigest(identity.encode())
        scorer = _Scorer(model, tokenised, ScoreStore(folder))
        return Teacher(model.fingerprint, scorer.scores)


@dataclass(frozen=True)
class _Scorer:
    model: cross.CrossEncoder
    corpus: TokenisedCorpus
    store: ScoreStore

    def scores(self, labelled: LabelledQueries, rows: Rows) -> Scores:
        texts = [query.text for query in labelled.queries]
        known_by = digests(texts)  # not by id, which may mean another query in another split
        if self._unknown(known_by, rows).any():
            with self.store.alone():
                self._add(texts, known_by, rows)
        return self.store.look_up(known_by, rows)

    def _unknown(self, known_by: Digests, rows: Rows) -> npt.NDArray[np.bool_]:
        unknown: npt.NDArray[np.bool_] = np.isnan(self.store.look_up(known_by, rows))
        unknown &= rows != NOTHING
        return unknown

    def _add(self, texts: list[str], known_by: Digests, rows: Rows) -> None:
        """Scores the pairs that the store does not have."""
        numbers, columns = np.nonzero(self._unknown(known_by, rows))
        pairs = np.unique(np.stack([numbers, rows[numbers, columns]]), axis=1)
        with Bar("score by the teacher", pairs.shape[1], "pairs") as bar:
            try:
                for start in range(0, pairs.shape[1], _AT_ONCE):
                    some, of = pairs[:, start : start + _AT_ONCE]
                    self.store.add(known_by[some], of, self._score(texts, some, of))
                    bar.advance(len(some))
            finally:
                self.store.flush()

    def _score(
        self, texts: list[str], numbers: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> Scores:
        queries = self.model.tokens([texts[number] for number in numbers])
        return self.model.score_tokens(queries, [self.corpus.tokens(int(row)) for row in rows])
