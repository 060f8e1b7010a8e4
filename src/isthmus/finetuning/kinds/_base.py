"""What a kind of encoder provides to fine-tuning: model, task, examples, rankings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from isthmus.encoders.encoder import EncoderSettings, TextModel
from isthmus.finetuning.development import DevelopmentSet, Places
from isthmus.finetuning.losses._base import Loss
from isthmus.finetuning.mining.candidates import Rows, Scores
from isthmus.finetuning.pairs import LabelledQueries, PairExamples, TaughtScores
from isthmus.registry import Registry
from isthmus.text.corpus import TokenisedCorpus
from isthmus.training.task import Task
from isthmus.training.trainer import Trainer

KINDS = Registry("isthmus.finetuning.kinds", "kind of encoder")


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
