"""What a stage reads: the split it is trained on, its queries, and how they are held out."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.collections import Collection, Problems
from isthmus.errors import InputError, choices
from isthmus.finetuning.development_set import is_test
from isthmus.finetuning.pairs import (
    LabelledQueries,
    drawn_queries,
    held_out_queries,
    labelled_queries,
)
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.progress import notice


def training_queries(
    collection: Collection, settings: FinetuneSettings, rows: Mapping[str, int], problems: Problems
) -> tuple[LabelledQueries, LabelledQueries | None]:
    """The queries that are trained on, and those of the split that are held out, if any are."""
    labelled = labelled_queries(collection, settings.split, rows, problems)
    held_out = None
    if settings.development is not None and settings.development.held_out is not None:
        labelled, held_out = held_out_queries(labelled, settings.development.held_out)
    return drawn_queries(labelled, settings.queries, settings.training.seed), held_out


def check_split(collection: Collection, settings: FinetuneSettings) -> None:
    """Raises on a split that the collection does not have; offers no split for testing instead."""
    splits = collection.splits()
    if settings.split in splits:
        return
    others = [split for split in splits if not is_test(split)]
    kept = ", ".join(split for split in splits if is_test(split))
    raise InputError(
        f"the collection has no split {settings.split!r}",
        where=f"{settings.collection}, split",
        allowed=choices(settings.split, others)
        if others
        else "a split to train on" + (f"; there is only {kept}, to measure by" if kept else ""),
        remedy=("--set split=NAME, or " if others else "")
        + f"write judgements to train on as qrels/{settings.split}.tsv, of other queries than "
        "those you measure by",
    )


def warn_of_test_splits(trained: str, chosen_by: str | None) -> None:
    """Says which split is no test any more: queries are trained on, or choose the model."""
    if is_test(trained):
        notice(
            f"training on the split {trained!r}: what is measured on it afterwards says nothing "
            "about other queries (judgements of some, whole queries, moved to qrels/train.tsv, "
            "leave the others a test)"
        )
    if chosen_by is not None and chosen_by != trained and is_test(chosen_by):
        notice(
            f"development.split = {chosen_by!r}: the model is chosen by these queries, so what is "
            "measured on them afterwards is NO TEST (judgements of other queries, as "
            "qrels/dev.tsv, leave it one)"
        )
