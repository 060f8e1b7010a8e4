"""What a kind of encoder provides to fine-tuning: model, task, examples, rankings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.encoders.cross import CrossEncoder, CrossSettings
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.encoder import Encoder, EncoderSettings, TextModel, batch_tokens, pad
from isthmus.encoders.model_settings import AnySettings, known_settings, per_text
from isthmus.encoders.modules import projecting
from isthmus.encoders.multi_vector import MultiVectorSettings
from isthmus.encoders.projection import load_projection
from isthmus.encoders.router import load_query_terms
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.errors import InputError
from isthmus.finetuning.candidates import Rows, Scores
from isthmus.finetuning.development import DevelopmentSet, Places
from isthmus.finetuning.losses import Loss
from isthmus.finetuning.pairs import LabelledQueries, PairExamples, TaughtScores
from isthmus.finetuning.registries import kind
from isthmus.finetuning.regularizers import (
    ACTIVE_TERMS,
    ControlWeights,
    IndexedTerms,
    StopWhenEmpty,
    check_targets,
    regularizers,
    settled,
    start_with,
)
from isthmus.finetuning.tasks import BiEncoderTask, CrossEncoderTask, CrossExamples, SparseTask
from isthmus.nn.backbone import Backbone
from isthmus.nn.classifier import load_classifier
from isthmus.progress import Bar, notice
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.order import length_sorted_batches
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.parallel import in_chunks
from isthmus.training.task import Task
from isthmus.training.trainer import Trainer


class Kind(ABC):
    """A kind of encoder, with those settings of a stage that concern it alone."""

    foreign: ClassVar[tuple[str, ...]]
    """The settings of a stage that have no effect on this kind."""
    usual_loss: ClassVar[str]
    gives: ClassVar[frozenset[str]]
    """What losses can be computed from, besides a query's own group and a teacher's scores."""
    retrieves: ClassVar[bool] = True
    """False: it orders what a retriever found."""
    Settings: ClassVar[type[EncoderSettings]]

    def __init__(self, chosen: Mapping[str, Any]) -> None:
        """Takes its own among all settings of a stage; those that are null have defaults."""
        own = {key: chosen[key] for key in self.Settings.model_fields if key in chosen}
        own = {key: value for key, value in own.items() if value is not None}
        self.settings: Any = self.Settings.parse(own, where="finetune")

    def settings_for(self, folder: str) -> EncoderSettings:
        """The settings with which the model of a folder is trained."""
        settings: EncoderSettings = self.settings
        return settings

    @abstractmethod
    def load(self, folder: str, dropout: float | None, seed: int) -> Any:
        """The model of a folder as an encoder of this kind; the seed draws what it lacks."""

    def changes(self, model: str) -> Iterator[str]:
        """Yields a message per setting that the model was made with and is not trained with."""
        return iter(())

    def prepare(self, encoder: Any, corpus: TokenisedCorpus, seed: int) -> None:  # noqa: B027 (most need nothing)
        """Changes the loaded encoder before training, by the documents it will read."""

    @abstractmethod
    def task(
        self, encoder: Any, group: int, losses: Sequence[Loss], mini_batch_size: int | None
    ) -> Task:
        """The encoder with its losses over groups of so many passages."""

    @abstractmethod
    def examples(
        self,
        encoder: Any,
        labelled: LabelledQueries,
        negatives: Rows | None,
        group: int,
        corpus: TokenisedCorpus,
        taught: TaughtScores | None,
    ) -> PairExamples:
        """The training examples of the task."""

    @abstractmethod
    def rank(
        self, encoder: Any, corpus: TokenisedCorpus, chosen: DevelopmentSet, depth: int
    ) -> Iterable[tuple[Places, Scores]]:
        """For each development query, places in `chosen.rows` and their scores."""

    def vectors(self, encoder: Any, corpus: TokenisedCorpus, rows: Places) -> Tensor:
        """The vectors of documents, in the order of their rows."""
        raise NotImplementedError  # settings refuse what would need them

    def first_step(self, encoder: TextModel) -> float:
        """The first step whose model may be kept as the best; below 1: a share of all steps."""
        return 0

    def watch(self, trainer: Trainer, queries: Sequence[str]) -> Callable[[], dict[str, Any]]:
        """Adds the callbacks of this kind; returns a function that gives, at the end, its results.

        `queries` are texts to evaluate on.
        """
        return dict


_OF_COSINES = 0.05  # the temperature of scores between -1 and 1
_LEFT_TO_THE_MODEL = {"query_prompt", "document_prompt", "include_prompt", "truncate_dim"}


class Vectors(Kind):
    """Trains on the scores of all passages of a batch, and ranks all documents."""

    usual_loss = "contrastive"
    gives = frozenset({"scores", "targets", "passages", "start_passages"})
    form: ClassVar[Mapping[str, str]]
    """The settings that decide what vectors mean, with their paths among a stage's settings."""

    def __init__(self, chosen: Mapping[str, Any]) -> None:
        super().__init__(chosen)
        cosine = getattr(self.settings, "similarity", "dot") == "cosine"
        self.temperature: float = chosen["temperature"] or (_OF_COSINES if cosine else 1.0)
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
        if isinstance(_stated(model), MultiVectorSettings):
            yield (
                f"{model} has a vector for each token; its backbone is trained here, without its "
                "projection and markers"
            )
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
    """The settings of a model that has one vector per text."""
    return per_text(_stated(model))


def _stated(model: str) -> AnySettings | None:
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


@kind("dense")
class Dense(Vectors):
    """Dense encoders: a short vector per text, from the backbone's last layer."""

    foreign = ("sparse", "regularizers", "start_terms")
    form: ClassVar = {"pooling": "pooling", "similarity": "similarity"}
    Settings = DenseSettings

    def encoder(
        self, backbone: Backbone, tokenizer: Tokenizer, settings: DenseSettings, folder: str
    ) -> DenseEncoder:
        """The encoder around a backbone, with the projection that the folder has."""
        projection = load_projection(folder, projecting(folder), backbone.dimension)
        return DenseEncoder(backbone, tokenizer, settings, folder, projection)

    def becomes(self, model: str, known: EncoderSettings | None) -> Iterator[str]:
        """Yields a message where the model was sparse."""
        if isinstance(known, SparseSettings):
            recipe = "lexmae-sparse" if known.form == "lexmae" else "splade"
            yield (f"{model} was made sparse; here it becomes dense (--recipe {recipe} keeps it)")


@kind("sparse")
class Sparse(Vectors):
    """Sparse encoders: a weight per term of the vocabulary, kept few by regularizers."""

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


@kind("cross")
class Cross(Kind):
    """Cross-encoders: query and passage read together; they re-rank, and teach.

    Trains a CrossEncoder on each query's own group.
    """

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
