"""What a stage of fine-tuning is refused for, before the hours of pre-training that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from isthmus.collections import open_collection
from isthmus.errors import SettingsError
from isthmus.finetuning.development import development_split, is_test
from isthmus.finetuning.kinds._base import KINDS
from isthmus.finetuning.resolved import outside
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.stage_data import check_split


def check_encoder(stages: Sequence[str], retrieves: bool, where: str) -> None:
    """Raises unless one of the stages' encoders retrieves; or, for a teacher, does not."""
    fit = [kind for kind in KINDS.names() if KINDS.load(kind).retrieves == retrieves]
    if not any(KINDS.load(kind, "encoder").retrieves == retrieves for kind in stages):
        raise SettingsError(
            f"{where}: encoder = {stages[-1]!r} makes no "
            f"{'retriever' if retrieves else 're-ranker'}",
            f"set encoder to {fit[0]}, or leave it to the recipe",
            ", ".join(fit),
        )


def check_splits(stages: Sequence[FinetuneSettings], spec: str) -> None:
    """Raises on splits to train on, or to choose the model by, that a collection does not have."""
    collection = open_collection(spec)
    for stage in stages:
        if stage.pseudo_queries is None:  # else they are drawn from the documents
            check_split(collection, stage)
            if stage.development is not None and stage.development.split is not None:
                development_split(stage.development, collection, stage.split)


def models_named(stages: Iterable[FinetuneSettings]) -> Iterator[tuple[str, str]]:
    """The path and the name of every model that stages name from outside the pipeline."""
    for stage in stages:
        for path, name in outside(stage).items():
            if path.rpartition(".")[2] != "file":
                yield path, name


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
