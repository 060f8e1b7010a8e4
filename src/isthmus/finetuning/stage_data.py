"""What a stage reads: the split it is trained on, its queries, and how they are held out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from isthmus.collections import Collection, Problems, open_collection, open_corpus
from isthmus.collections.judged import reported_by
from isthmus.errors import InputError, choices
from isthmus.finetuning.development import is_test
from isthmus.finetuning.mining.candidates import PassageCorpus
from isthmus.finetuning.pairs import (
    LabelledQueries,
    drawn_queries,
    held_out_queries,
    labelled_queries,
    with_other_passages,
)
from isthmus.finetuning.passage_collection import PassageCollection, in_passages, stage_cutter
from isthmus.finetuning.pseudo_collection import PseudoCollection
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.progress import notice
from isthmus.text.passages import Cutter

_PSEUDO_QUERIES_FILE = "pseudo_queries.jsonl"
_LEAST_DRAWN = 1024  # queries, however short training is
_UNKNOWN_STEPS = 1000  # queries are drawn for so many where epochs say how long training goes on


def stage_collection(
    settings: FinetuneSettings, problems: Problems, output: Path | None = None
) -> Collection:
    """The judged collection that a stage names, or its documents with queries drawn from them.

    `output` is the folder that keeps drawn queries, where there is one already.
    """
    if settings.pseudo_queries is None:
        judged = open_collection(settings.collection, problems)
        return PassageCollection(judged, settings) if in_passages(settings, judged) else judged
    training = settings.training
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    size = training.per_device_train_batch_size * training.gradient_accumulation_steps * processes
    wanted = max(_LEAST_DRAWN, size * (training.max_steps or _UNKNOWN_STEPS))
    corpus = open_corpus(settings.collection, problems)
    again = open_corpus(settings.collection, Problems("skip", settings.line_limit))
    if in_passages(settings, corpus):
        corpus, again = (
            PassageCorpus(one, partial(stage_cutter, settings)) for one in (corpus, again)
        )
    file = None if output is None else output / _PSEUDO_QUERIES_FILE
    return PseudoCollection(corpus, again, settings.pseudo_queries, wanted, training.seed, file)


def cutter_of(collection: Collection) -> Cutter | None:
    """What cuts the documents of a collection; None where they are whole."""
    corpus = collection.corpus if isinstance(collection, PseudoCollection) else collection
    return corpus.cutter if isinstance(corpus, PassageCorpus) else None


def training_queries(
    collection: Collection, settings: FinetuneSettings, rows: Mapping[str, int], problems: Problems
) -> tuple[LabelledQueries, LabelledQueries | None]:
    """The queries that are trained on, and those of the split that are held out, if any are."""
    labelled = labelled_queries(collection, settings.split, rows, problems)
    if cutter_of(collection) is not None:
        labelled = with_other_passages(labelled, rows)
    if isinstance(collection, PseudoCollection):
        cuts = collection.cuts()
        labelled = replace(labelled, cuts=[cuts.get(query.id, "") for query in labelled.queries])
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
        f"the collection {settings.collection} has no split {settings.split!r}"
        + (f"; it has only {kept}, to measure by" if kept and not others else ""),
        ("--set split=NAME, or " if others else "")
        + (
            f"write judgements to train on as qrels/{settings.split}.tsv, of other queries "
            "than those you measure by"
        ),
        choices(settings.split, others),
    )


@dataclass(frozen=True)
class Selection:
    """Which queries choose the model: a split, or some of the training queries, held out."""

    split: str | None  # None: no queries do, and the last model becomes final
    held_out: bool = False
    drawn: bool = False  # from documents
    reported: str | None = None  # the data set whose papers report on the split

    @classmethod
    def of(cls, settings: FinetuneSettings, split: str | None) -> Selection:
        """What the settings of a stage come to, `split` being that of its development queries."""
        own = settings.development is not None and settings.development.held_out is not None
        drawn = settings.pseudo_queries is not None
        open_to_doubt = split is not None and not own and not drawn
        reported = reported_by(settings.collection, str(split)) if open_to_doubt else None
        return cls(split, own, drawn, reported)


def warn_of_test_splits(trained: str, selection: Selection) -> None:
    """Says which split is no test any more: queries are trained on, or choose the model."""
    chosen_by = selection.split
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
    if selection.reported is not None:
        notice(
            f"the model is chosen by the split {chosen_by!r}, on which papers report their results "
            f"on {selection.reported}: what is measured on it afterwards flatters the model, and "
            "is NOT COMPARABLE with theirs (--set development.held_out=300 chooses by training "
            "queries)"
        )
