"""What a protocol is refused for, before the hours of training that it asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isthmus.collections import Judged, open_collection
from isthmus.errors import SettingsError
from isthmus.evaluation.query_scores import check_measures, counts_answers
from isthmus.finetuning.development import development_split, is_test
from isthmus.finetuning.registries import KINDS
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.training_collection import check_split

_TOLERANCE = 0.02
_TWO_TEXTS = ("neighbours",)  # views that show two spans of a document


def tokens_of(values: Mapping[str, Any]) -> float:
    """The tokens that a pre-training reads at most; without a number of steps, per document.

    Texts are counted at full length: which of them are shorter is the same for all methods.
    """
    training = values.get("training") or {}
    view = values.get("view")
    given: Mapping[str, Any] = view if isinstance(view, Mapping) else {"name": view}
    tokens = float(values.get("max_length", 144))
    if given.get("name") in _TWO_TEXTS:
        tokens = 2 * min(tokens, float(given.get("span", tokens)))
    if (steps := training.get("max_steps")) is None:
        return tokens * float(training.get("num_train_epochs", 3.0))
    passes = training.get("gradient_accumulation_steps", 1)
    return tokens * float(steps * passes * training.get("per_device_train_batch_size", 32))


def check_budgets(read: Iterable[tuple[str, str, float]]) -> None:
    """Refuses methods of one task that were pre-trained on different numbers of tokens.

    `read` are tasks, methods and tokens; a method without pre-training is compared with all others.
    """
    seen: dict[str, tuple[str, float]] = {}
    for task, method, tokens in read:
        other, others = seen.setdefault(task, (method, tokens)) if tokens else (method, tokens)
        if abs(tokens - others) > _TOLERANCE * others:
            raise SettingsError(
                f"for {task}, {method!r} reads {tokens:,.0f} tokens in pre-training and {other!r} "
                f"{others:,.0f}: a difference between them could be due to that",
                f"change training.max_steps or the batch in methods.{method}.settings (two spans "
                "of a document count twice), or --set equal_tokens=false",
            )


def check_judged(spec: str, split: str, measures: Sequence[str]) -> None:
    """Raises on measures that need answers, or judgements, where a split has none.

    Nothing is read where neither the measures nor the collection know of answers.
    """
    opened = open_collection(spec)
    if any(map(counts_answers, measures)) or opened.answers(split):
        check_measures(measures, Judged.of(opened, split))


def check_encoder(stages: Sequence[str], where: str) -> None:
    """Raises unless one of the stages' encoders retrieves."""
    if not any(KINDS.load(name, "encoder").retrieves for name in stages):
        raise SettingsError(
            f"{where}: encoder = {stages[-1]!r} makes no retriever",
            "choose a recipe of a dense or sparse encoder",
        )


def check_splits(stages: Sequence[FinetuneSettings], spec: str) -> None:
    """Raises on splits to train on, or to choose the model by, that a collection does not have."""
    collection = open_collection(spec)
    for stage in stages:
        if stage.pseudo_queries is None:  # else they are drawn from the documents
            check_split(collection, stage)
            if stage.development is not None and stage.development.split is not None:
                development_split(stage.development, collection, stage.split)


def refuse_seen(values: Mapping[str, Any], tested: str, task: str) -> None:
    """Raises where a task tests the queries that it trains on, or that choose its model."""
    development = values.get("development", {})
    seen = {values.get("split", "train")}
    if development is not None and development.get("held_out") is None:
        seen.add(development.get("split") or ("" if is_test(tested) else tested))
    if tested in seen:
        raise SettingsError(
            f"tasks.{task}: the split {tested!r} is tested, but training uses it too",
            "test another split, or set development to null or development.held_out",
        )
