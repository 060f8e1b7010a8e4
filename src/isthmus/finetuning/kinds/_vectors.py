"""What dense and sparse encoders share: one vector per text, compared by inner product."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.encoders.encoder import Encoder, EncoderSettings, batch_tokens, pad
from isthmus.encoders.model_settings import known_settings
from isthmus.errors import InputError
from isthmus.finetuning.bi_encoder_task import BiEncoderTask
from isthmus.finetuning.development import DevelopmentSet, Places
from isthmus.finetuning.kinds._base import Kind
from isthmus.finetuning.losses._base import Loss
from isthmus.finetuning.mining.candidates import Rows, Scores
from isthmus.finetuning.pairs import LabelledQueries, PairExamples, TaughtScores
from isthmus.nn.backbone import Backbone
from isthmus.progress import Bar
from isthmus.text.batches import length_sorted_batches
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.parallel import in_chunks

_LEFT_TO_THE_MODEL = {"query_prompt", "document_prompt", "include_prompt", "truncate_dim"}


class Vectors(Kind):
    """Trains on the scores of all passages of a batch, and ranks all documents."""

    usual_loss = "contrastive"
    gives = frozenset({"scores", "targets", "passages", "start_passages"})
    form: ClassVar[Mapping[str, str]]
    """The settings that decide what vectors mean, with their paths among a stage's settings."""

    def __init__(self, chosen: Mapping[str, Any]) -> None:
        super().__init__(chosen)
        self.temperature: float = chosen["temperature"]
        self.training_max_length: int | None = chosen["training_max_length"]
        names = self.Settings.model_fields.keys() & _LEFT_TO_THE_MODEL
        self._left = [name for name in names if chosen[name] is None]

    def load(self, folder: str, dropout: float | None, seed: int) -> Encoder:
        """The backbone with its masked-LM head, as an encoder."""
        tokenizer = Tokenizer.load(folder)
        backbone = Backbone.load(folder, "keep", dropout, seed)
        return self.encoder(backbone, tokenizer, self.settings_for(folder), folder)

    def settings_for(self, folder: str) -> Any:
        """The settings of the stage, with those of the model where the stage leaves it to it."""
        known = _known(folder)
        left = {name: getattr(known, name, None) for name in self._left}
        own = {name: value for name, value in left.items() if value is not None}
        return self.settings.model_copy(update=own)

    @abstractmethod
    def encoder(
        self, backbone: Backbone, tokenizer: Tokenizer, settings: Any, folder: str
    ) -> Encoder:
        """The encoder around a backbone."""

    def changes(self, model: str) -> Iterator[str]:
        """Yields a message per setting that the model was made with and is not trained with."""
        known = _known(model)
        prompts = self.settings_for(model).prompts()
        if any(prompts):
            yield f"{model}: queries begin with {prompts[0]!r}, documents with {prompts[1]!r}"
        yield from self.becomes(model, known)
        for key, path in self.form.items():
            now, then = getattr(self.settings, key), getattr(known, key, None)
            if then is not None and now != then:
                yield (
                    f"{model} was made with {key}={then}; it is trained with {now} here "
                    f"(--set {path}={then} keeps it)"
                )

    def becomes(self, model: str, known: EncoderSettings | None) -> Iterator[str]:
        """Yields a message where the model was of another kind."""
        return iter(())

    def task(
        self, encoder: Encoder, group: int, losses: Sequence[Loss], mini_batch_size: int | None
    ) -> BiEncoderTask:
        """Queries and passages through one encoder."""
        return BiEncoderTask(encoder, group, self.temperature, losses, mini_batch_size)

    def examples(
        self,
        encoder: Encoder,
        labelled: LabelledQueries,
        negatives: Rows | None,
        group: int,
        corpus: TokenisedCorpus,
        taught: TaughtScores | None,
    ) -> PairExamples:
        """A query, its positive and its negatives, each a text of its own."""
        tokenizer, settings = encoder.tokenizer, encoder.settings
        return PairExamples(
            labelled,
            negatives,
            group,
            corpus,
            tokenizer,
            settings,
            taught,
            alike=encoder.alike,
            max_length=self.training_max_length,
        )

    def rank(
        self, encoder: Encoder, corpus: TokenisedCorpus, chosen: DevelopmentSet, depth: int
    ) -> Iterable[tuple[Places, Scores]]:
        """For each query the best of all documents by inner product, with all terms if sparse."""
        device = encoder.backbone.word_embeddings.device
        rows = encoder.tokenise_queries([query.text for query in chosen.queries])
        ids, mask = pad(rows, encoder.tokenizer.pad_id)
        queries = in_chunks(encoder.represent_queries, ids.to(device), mask.to(device))
        scores = torch.empty(len(queries), len(chosen.rows), device=device)
        with Bar("encode development documents", len(chosen.rows), "documents") as bar:
            for batch, vectors in documents(encoder, corpus, chosen.rows):
                with torch.autocast(device.type, enabled=False):  # bf16 would round scores to ties
                    scores[:, batch] = queries @ vectors.T
                bar.advance(len(batch))
        best = scores.topk(min(depth, len(chosen.rows)))
        return zip(best.indices.cpu().numpy(), best.values.cpu().numpy(), strict=True)

    def vectors(self, encoder: Encoder, corpus: TokenisedCorpus, rows: Places) -> Tensor:
        """The vectors of documents, in the order of their rows."""
        found = list(documents(encoder, corpus, rows))
        order = np.argsort(np.concatenate([batch for batch, _ in found]))
        return torch.cat([part for _, part in found])[torch.from_numpy(order)]


def _known(model: str) -> EncoderSettings | None:
    with suppress(InputError):  # pooled in a way that isthmus does not know
        return known_settings(model)
    return None


def documents(
    encoder: Encoder, corpus: TokenisedCorpus, rows: Places
) -> Iterator[tuple[npt.NDArray[np.int64], Tensor]]:
    """Yields places among the rows of documents, and their vectors, in batches of like length."""
    settings, tokenizer = encoder.settings, encoder.tokenizer
    lengths = np.minimum(corpus.lengths[rows], settings.document_max_length)
    device = encoder.backbone.word_embeddings.device
    for batch in length_sorted_batches(lengths, batch_tokens(device)):
        tokens = (corpus.tokens(row) for row in rows[batch])
        framed = [tokenizer.frame(row, settings.document_max_length) for row in tokens]
        yield batch, encoder.represent(framed)
