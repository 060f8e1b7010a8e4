"""One stage of fine-tuning: data and negatives prepared, an encoder trained, saved, described."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState

from isthmus.collections import Collection, Problems, open_corpus
from isthmus.collections.judged import reported_by
from isthmus.config.model_card import finish_model
from isthmus.config.models import model_folder, named_at
from isthmus.config.output import claimed, is_complete, notice_changes, refuse_inside, writing
from isthmus.finetuning.audit import audit, write_page
from isthmus.finetuning.candidates import Rows, TrainingCorpus
from isthmus.finetuning.development import (
    Development,
    development_split,
    draw_development_set,
    is_test,
)
from isthmus.finetuning.losses import outweighed_batch
from isthmus.finetuning.merge import Merger, weights_of
from isthmus.finetuning.mining import epochs_of, mine
from isthmus.finetuning.pairs import (
    LabelledQueries,
    TaughtScores,
    labelled_queries,
    with_other_passages,
)
from isthmus.finetuning.pseudo_queries import held_out_documents
from isthmus.finetuning.settings import HELD_OUT_DOCUMENTS, FinetuneSettings
from isthmus.finetuning.stages import Stage
from isthmus.finetuning.teachers import Teacher, check_teacher, taught_scores
from isthmus.finetuning.training_collection import (
    check_split,
    stage_collection,
    tokenised_corpus,
    training_queries,
)
from isthmus.progress import notice, track
from isthmus.training.evaluation import evaluated
from isthmus.training.parallel import main_process_first, wait_for_everyone
from isthmus.training.trainer import Trainer

_NEGATIVES_FILE = "negatives.npy"
Results = dict[str, Any]


@dataclass(frozen=True)
class _Data:
    """What a stage is trained and evaluated on."""

    corpus: TrainingCorpus
    labelled: LabelledQueries
    development: Development | None

    @property
    def evaluated(self) -> list[str]:
        """The texts of the development queries, or of the training queries where there are none."""
        development = self.development
        queries = self.labelled.queries if development is None else development.chosen.queries
        return [query.text for query in queries]


@dataclass(frozen=True)
class _Mined:
    """Negatives, a teacher's scores of them, and how well the teacher ranks."""

    negatives: Rows | None = None
    taught: TaughtScores | None = None
    checked: dict[str, Any] | None = None


def train(stage: Stage, overwrite: bool = False, repeated: Mapping[str, Any] | None = None) -> Path:
    """Trains a stage, from its last checkpoint if there is one; returns the folder `final`."""
    began = time.monotonic()
    settings, final = stage.settings, stage.output / "final"
    problems = settings.account()
    collection = stage_collection(settings, problems, stage.output)
    check_split(collection, settings)
    split = development_split(settings.development, collection, settings.split)
    with ExitStack() as claims:
        with main_process_first():
            fingerprint = collection.fingerprint()
            identity = stage.identity(fingerprint)
            notice_changes(repeated, identity)
            if overwrite:
                inputs = {"collection": settings.collection, "model": settings.model}
                refuse_inside(stage.output, inputs)
            claim = claimed(stage.output, "finetune", identity, overwrite)
            begun = claims.enter_context(claim)
            if is_complete(stage.output):
                notice(f"{stage.output} is complete already (--overwrite does it again)")
                return final
            if not begun and PartialState().is_main_process:
                # Bad data ends the command before a model is loaded.
                read = open_corpus(settings.collection, settings.account())
                for _ in track(
                    read.documents(), f"checking {settings.collection}", read.count(), "documents"
                ):
                    pass
            selection = Selection.of(settings, split)
            encoder = _encoder(stage, selection)
            data = _data(stage, encoder, collection, fingerprint, split, problems)
            mined = _mined(stage, data)
        trainer = _trainer(stage, encoder, data, mined)
        merger = _merger(stage, encoder, data, trainer)
        own_results = stage.kind.watch(trainer, data.evaluated)
        # Queries drawn from documents favour training on, whatever it costs real ones: they do not
        # choose among steps, but may veto the merged model.
        watched = data.development if merger is None or merger.measure is None else None
        if watched is not None:
            watched.watch(trainer, stage.kind.first_step(encoder))
        history = trainer.fit()
        if trainer.is_world_process_zero():
            results = _results(trainer, watched, mined, merger, own_results)
            with writing(final):
                trainer.task.save(final)
            results |= {"selection": asdict(selection), "seconds": time.monotonic() - began}
            finish_model(stage.output, {**results, "log": history}, [settings.model])
        wait_for_everyone()
    return final


def _encoder(stage: Stage, selection: Selection) -> Any:
    """The encoder to start from; says what is unusual about training it so."""
    training = stage.settings.training
    with named_at("model"):
        folder = model_folder(stage.settings.model)
        encoder = stage.kind.load(folder, training.dropout, training.seed)
    warn_of_test_splits(stage.settings.split, selection)
    for change in stage.kind.changes(stage.settings.model):
        notice(change)
    if "scores" in stage.kind.gives and (advice := outweighed_batch(stage.losses, stage.group)):
        notice(advice)
    return encoder


def _data(
    stage: Stage,
    encoder: Any,
    collection: Collection,
    fingerprint: str,
    split: str | None,
    problems: Problems,
) -> _Data:
    """The tokenised corpus, its training queries, and the development set of a split, if any."""
    settings, seed = stage.settings, stage.settings.training.seed
    _, prompt = encoder.settings.prompts()
    corpus = tokenised_corpus(collection, settings, fingerprint, encoder.tokenizer, prompt)
    tokenised = corpus.tokenised
    stage.kind.prepare(encoder, tokenised, seed)
    remembered = tokenised.remember(problems.summary())
    labelled, held_out = training_queries(collection, settings, corpus.rows, problems)
    development = None
    if split is not None and settings.development is not None:
        if held_out is None:
            held_out = labelled_queries(collection, split, corpus.rows, problems)
            if corpus.cutter is not None:
                held_out = with_other_passages(held_out, corpus.rows)
        chosen = draw_development_set(corpus, split, held_out, settings.development, seed)
        rank = partial(stage.kind.rank, encoder, tokenised, chosen)
        development = Development(rank, tokenised, chosen, settings.development)
    # Problems of documents may be remembered from an earlier run; those of judgements are new.
    summary = problems.summary()
    for message in (remembered if remembered not in summary else "", summary):
        if message:
            notice(message)
    return _Data(corpus, labelled, development)


def _mined(stage: Stage, data: _Data) -> _Mined:
    """The negatives of all sources, scored by the teacher where a loss learns from it.

    The teacher's memory is free again when this returns.
    """
    if not stage.sources:
        return _Mined()
    teacher = None if stage.teacher is None else stage.teacher.open(data.corpus)
    negatives = _negatives(stage, data, teacher)
    if teacher is None or not stage.distils:
        return _Mined(negatives)
    checked = None
    if data.development is None:
        notice("whether the teacher ranks well is not known: no development queries")
    else:
        chosen, measure = data.development.chosen, data.development.name
        checked = check_teacher(teacher, stage.sources, data.corpus, chosen, measure)
    return _Mined(negatives, taught_scores(teacher, data.labelled, negatives), checked)


def _negatives(stage: Stage, data: _Data, teacher: Teacher | None) -> Rows:
    """The negatives of every epoch, mapped from the stage's folder, which keeps them."""
    settings, sources = stage.settings, stage.sources
    file = stage.output / _NEGATIVES_FILE
    if not file.is_file():
        processes = PartialState().num_processes
        epochs = epochs_of(settings.training, len(data.labelled.queries), sources, processes)
        mined = mine(sources, data.corpus, data.labelled, epochs, settings.training.seed, teacher)
        if settings.audit:
            found = audit(mined, sources, data.corpus, data.labelled, settings.split, teacher)
            write_page(found, file.with_suffix(".html"))
            notice(f"{found.verdict}\na page to read: {file.with_suffix('.html')}")
        partial_file = file.with_name(f".partial.{file.name}")
        with writing(file):
            np.save(partial_file, mined.rows, allow_pickle=False)
            partial_file.replace(file)
    rows: Rows = np.load(file, mmap_mode="r", allow_pickle=False)
    return rows


def _trainer(stage: Stage, encoder: Any, data: _Data, mined: _Mined) -> Trainer:
    kind, settings = stage.kind, stage.settings
    task = kind.task(encoder, stage.group, stage.losses, settings.mini_batch_size)
    examples = kind.examples(
        encoder, data.labelled, mined.negatives, stage.group, data.corpus.tokenised, mined.taught
    )
    return Trainer(task, examples, settings.training, stage.output, description="fine-tune")


def _merger(stage: Stage, encoder: Any, data: _Data, trainer: Trainer) -> Merger | None:
    """What averages the trained weights with those of now, where settings say so."""
    chosen = stage.settings.merge
    if chosen is None:
        return None
    corpus, development = data.corpus, data.development
    drawn = stage.settings.pseudo_queries
    wanted = HELD_OUT_DOCUMENTS if drawn is None else drawn.held_out
    kept = sorted(corpus.rows[one] for one in held_out_documents(corpus.rows, wanted))
    vectors = partial(stage.kind.vectors, encoder, corpus.tokenised, np.array(kept))
    measure: Callable[[], Mapping[str, float]] | None = None
    if development is not None and stage.settings.pseudo_queries is not None:
        measure = partial(evaluated, trainer, development)
    return Merger(
        chosen,
        encoder.trained,
        weights_of(encoder.trained),
        vectors=partial(evaluated, trainer, vectors),
        measure=measure,
    )


def _results(
    trainer: Trainer,
    development: Development | None,
    mined: _Mined,
    merger: Merger | None,
    own_results: Callable[[], Results],
) -> Results:
    """What the snapshot keeps; the trained task then holds the weights of the best model.

    With a merger they are averaged with those of the start.
    """
    results: Results = {"queries": len(trainer.examples)}
    if development is not None:
        results["development"] = development.take_best(trainer)
    if merger is not None:
        results["merge"] = merger()
    if mined.checked is not None:
        results["teacher"] = mined.checked
    return {**results, **own_results()}


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
