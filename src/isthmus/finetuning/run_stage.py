"""One stage of fine-tuning: data and negatives made ready, an encoder trained, kept, described."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState

from isthmus.collections import Collection, Problems, open_collection
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.config.output import claimed, finish, is_complete, writing
from isthmus.encoders.cross import CrossEncoder, CrossSettings
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.loader import known_settings
from isthmus.encoders.query_terms import QUERY_TERMS_FILE
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.errors import InputError, SettingsError, choices
from isthmus.finetuning.bi_encoder_task import BiEncoderTask
from isthmus.finetuning.cross_encoder_task import CrossEncoderTask, CrossExamples
from isthmus.finetuning.development_measure import Development
from isthmus.finetuning.development_set import (
    check_development,
    development_split,
    draw_development_set,
    is_test,
)
from isthmus.finetuning.losses._base import Loss, losses, outweighed_batch
from isthmus.finetuning.mining.audit import audit
from isthmus.finetuning.mining.audit_page import write_page
from isthmus.finetuning.mining.candidates import Rows, TrainingCorpus
from isthmus.finetuning.mining.mine import epochs_of, group_size, mine
from isthmus.finetuning.negatives._base import Source, negative_sources
from isthmus.finetuning.pairs import (
    LabelledQueries,
    PairExamples,
    drawn_queries,
    held_out_queries,
    labelled_queries,
)
from isthmus.finetuning.references import references, with_folders
from isthmus.finetuning.regularizers._base import regularizers, settled
from isthmus.finetuning.settings import FOREIGN, FinetuneSettings
from isthmus.finetuning.sparsity.active_terms import ACTIVE_TERMS, StopWhenEmpty
from isthmus.finetuning.sparsity.indexed_terms import IndexedTerms
from isthmus.finetuning.sparsity.start_terms import start_with
from isthmus.finetuning.sparsity.target_check import check_targets
from isthmus.finetuning.sparsity.weight_controller import Steer
from isthmus.finetuning.teachers._base import Teacher, taught_scores, teacher_source
from isthmus.finetuning.teachers._check import check_teacher
from isthmus.nn.backbone import Backbone
from isthmus.nn.classifier import load_classifier
from isthmus.progress import notice
from isthmus.text.corpus import tokenise
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.arguments import check_trackers
from isthmus.training.launch import main_process_first, wait_for_everyone
from isthmus.training.trainer import Trainer

_NEGATIVES_FILE = "negatives.npy"


def run(written: FinetuneSettings, stages: Mapping[str, Path] | None = None) -> Path:
    """Trains what the settings say; returns the folder `final`.

    Run again after an interruption, it goes on from the last checkpoint. `stages` are the folders
    of earlier stages, which `stage:NAME` in the settings stands for.
    """
    with ExitStack() as claims:
        return _run(written, stages, claims)


def _run(written: FinetuneSettings, stages: Mapping[str, Path] | None, claims: ExitStack) -> Path:
    began = time.monotonic()
    settings = with_folders(written, stages or {})
    check(settings)
    sources = negative_sources(settings.negatives, teacher=settings.teacher is not None)
    group = group_size(sources)
    sparse_by = regularizers(settings.regularizers)
    learnt_by = losses(settings.losses, _given(settings))
    teaching = teacher_source(settings.teacher)
    problems = settings.account()
    collection = open_collection(settings.collection, problems)
    check_split(collection, settings)
    measured_on = development_split(settings.development, collection, settings.split)
    name = model_folder(settings.model)
    output = Path(settings.output)
    final = output / "final"
    with main_process_first():
        fingerprint = collection.fingerprint()
        described = identity(written, stages or {}, fingerprint)
        claims.enter_context(claimed(output, "finetune", described))
        if is_complete(output):
            notice(f"{output} is complete already")
            return final
        with named_at("model"):
            encoder = _encoder(name, settings)
        _say_what_is_no_test_any_more(settings.split, measured_on)
        _say_what_changes(settings)
        if settings.encoder != "cross" and (told := outweighed_batch(learnt_by, group)):
            notice(told)
        source = f"{fingerprint} {settings.kept}"
        serialised = encoder.tokenizer.serialised
        corpus = tokenise(collection.documents(), source, serialised, settings.titles)
        if isinstance(encoder, SparseEncoder) and settings.start_terms is not None:
            start_with(encoder, corpus, settings.start_terms, settings.training.seed)
        remembered = corpus.remember(problems.summary())
        searched = TrainingCorpus(
            settings.collection, collection, source, corpus, settings.titles, settings.reading
        )
        labelled, held_out = training_queries(collection, settings, searched.rows, problems)
        development = None
        if measured_on is not None and settings.development is not None:
            if held_out is None:
                held_out = labelled_queries(collection, measured_on, searched.rows, problems)
            seed = settings.training.seed
            drawn = draw_development_set(
                searched, measured_on, held_out, settings.development, seed
            )
            development = Development(encoder, corpus, drawn, settings.development)
        # The documents' problems are known anew or remembered; the judgements' are always new.
        summary = problems.summary()
        for message in (remembered if remembered not in summary else "", summary):
            if message:
                notice(message)
        negatives = taught = checked = None
        if sources:
            teacher = None if teaching is None else teaching.open(searched)
            negatives = _mine(sources, searched, labelled, settings, teacher)
            if teacher is not None and any("teacher" in loss.needs for loss in learnt_by):
                if development is None:
                    notice("whether the teacher ranks well is not known: no development queries")
                else:
                    checked = check_teacher(
                        teacher, sources, searched, development.chosen, development.name
                    )
                taught = taught_scores(teacher, labelled, negatives)
            del teacher  # and the memory it takes
    task: BiEncoderTask | CrossEncoderTask
    if isinstance(encoder, CrossEncoder):
        assert negatives is not None, "no loss of a cross-encoder does without"
        task = CrossEncoderTask(encoder, group, learnt_by, settings.mini_batch_size)
        examples: PairExamples = CrossExamples(labelled, negatives, group, corpus, encoder, taught)
    else:
        task = BiEncoderTask(
            encoder, group, settings.temperature, learnt_by, sparse_by, settings.mini_batch_size
        )
        examples = PairExamples(
            labelled,
            negatives,
            group,
            corpus,
            encoder.tokenizer,
            encoder.settings,
            taught,
            alike=encoder.alike,
        )
    trainer = Trainer(task, examples, settings.training, output, description="fine-tune")
    indexed = None
    if isinstance(encoder, SparseEncoder):
        trainer.add_callback(StopWhenEmpty())
        asked = labelled.queries if development is None else development.chosen.queries
        texts = [query.text for query in asked]
        indexed = IndexedTerms(encoder, examples, texts, settings.training.seed, trainer)
        trainer.add_callback(Steer(task, indexed.ratios))
    if development is not None:
        development.watch(trainer, settled(sparse_by))
    history = trainer.fit()
    if trainer.is_world_process_zero():
        results: dict[str, Any] = {"queries": len(examples)}
        if development is not None:
            results["development"] = development.take_best(trainer)
        if checked is not None:
            results["teacher"] = checked
        if indexed is not None and isinstance(task, BiEncoderTask):
            active = {side: float(terms) for side, terms in indexed().items()}
            check_targets(task, active)
            results[ACTIVE_TERMS] = active
        with writing(final):
            task.save(final)
        seconds = time.monotonic() - began
        finish(output, {**results, "seconds": seconds, "log": history})
    wait_for_everyone()
    return final


def training_queries(
    collection: Collection, settings: FinetuneSettings, rows: Mapping[str, int], problems: Problems
) -> tuple[LabelledQueries, LabelledQueries | None]:
    """The queries that are trained on, and those of the split that are held out, if any are."""
    labelled = labelled_queries(collection, settings.split, rows, problems)
    held_out = None
    if settings.development is not None and settings.development.held_out is not None:
        labelled, held_out = held_out_queries(labelled, settings.development.held_out)
    return drawn_queries(labelled, settings.queries, settings.training.seed), held_out


def check(settings: FinetuneSettings) -> None:
    """Refuses settings that cannot work, before any data or weights are read."""
    sources = negative_sources(settings.negatives, teacher=settings.teacher is not None)
    _check_kind(settings)
    _check_batch(settings)
    regularizers(settings.regularizers)
    teacher_source(settings.teacher)
    _check_teacher(settings, losses(settings.losses, _given(settings)), sources)
    check_development(settings.development, settings.encoder)
    check_trackers(settings.training)


def identity(
    written: FinetuneSettings, stages: Mapping[str, Path], collection: str
) -> dict[str, Any]:
    """What makes two runs of a stage the same: settings, stages they refer to, and the data."""
    settings = with_folders(written, stages)
    name = model_folder(settings.model)
    sources = negative_sources(settings.negatives, teacher=settings.teacher is not None)
    negatives = [source.origin() for source in sources]
    teaching = teacher_source(settings.teacher)
    # Not the output, and of stages not their path: folders may move, and be named in several ways.
    referred = sorted(set(references(written).values()))
    return {
        "settings": written.model_dump(exclude={"output"}),
        **({"stages": {stage: stages[stage].name for stage in referred}} if referred else {}),
        "data": {
            "collection": collection,
            "model": model_fingerprint(name) or name,
            **({"negatives": negatives} if any(negatives) else {}),
            **({"teacher": teaching.origin()} if teaching else {}),
        },
    }


def _say_what_changes(settings: FinetuneSettings) -> None:
    if settings.encoder == "cross":  # whatever made vectors before makes none here
        return
    known = None
    with suppress(InputError):  # pooled in a way that isthmus does not know: a new one is no change
        known = known_settings(settings.model)
    if settings.encoder == "dense" and isinstance(known, SparseSettings):
        notice(
            f"{settings.model} was made sparse; here it becomes dense (--recipe "
            f"{'lexmae-sparse' if known.form == 'lexmae' else 'splade'} keeps it)"
        )
    chosen = settings if settings.encoder == "dense" else settings.sparse
    for key in ("pooling", "similarity", "form", "query"):
        now, then = getattr(chosen, key, None), getattr(known, key, None)
        if None not in (now, then) and now != then:
            kept = f"sparse.{key}" if settings.encoder == "sparse" else key
            notice(
                f"{settings.model} was made with {key}={then}; it is trained with {now} here "
                f"(--set {kept}={then} keeps it)"
            )


def _encoder(name: str, settings: FinetuneSettings) -> DenseEncoder | SparseEncoder | CrossEncoder:
    tokenizer = Tokenizer.load(name)
    training = settings.training
    if settings.encoder == "cross":
        classifier = load_classifier(name, "add", training.dropout, training.seed)
        chosen = settings.model_dump(include=set(CrossSettings.model_fields))
        return CrossEncoder(
            classifier, tokenizer, CrossSettings.parse(chosen, where="finetune"), name
        )
    backbone = Backbone.load(name, "keep", training.dropout, training.seed)
    if settings.encoder == "dense":
        chosen = settings.model_dump(include=set(DenseSettings.model_fields))
        return DenseEncoder(
            backbone, tokenizer, DenseSettings.parse(chosen, where="finetune"), name
        )
    chosen = settings.model_dump(include=set(SparseSettings.model_fields))
    chosen |= settings.sparse.model_dump()
    encoder = SparseEncoder(
        backbone, tokenizer, SparseSettings.parse(chosen, where="finetune"), name
    )
    if encoder.query_terms is not None and (Path(name) / QUERY_TERMS_FILE).is_file():
        encoder.query_terms.restore(Path(name))
        notice(f"the weights of query terms go on from {name}")
    return encoder


def _check_kind(settings: FinetuneSettings) -> None:
    """Refuses what would have no effect on an encoder of the chosen kind."""
    fields = FinetuneSettings.model_fields
    for key in FOREIGN[settings.encoder]:
        value, default = getattr(settings, key), fields[key].default
        if value != default:
            shown = value.model_dump(exclude_defaults=True) if key == "sparse" else value
            others = [kind for kind, foreign in FOREIGN.items() if key not in foreign]
            raise SettingsError(
                f"{key} = {shown!r} means nothing to a {settings.encoder} encoder",
                where=key,
                allowed=f"{key} with encoder={' or '.join(others)}",
                remedy=f"--set encoder={others[0]}, or leave {key} out",
            )


def _check_batch(settings: FinetuneSettings) -> None:
    """Refuses batches whose number of queries, hence of negatives, changes from step to step."""
    if (tokens := settings.training.per_device_train_tokens) is not None:
        raise SettingsError(
            f"training.per_device_train_tokens = {tokens} is for pre-training: here the texts of a "
            "batch are each other's negatives",
            where="training.per_device_train_tokens",
            allowed="null",
            remedy="--set training.per_device_train_batch_size=N, and mini_batch_size where memory "
            "is short",
        )


def _given(settings: FinetuneSettings) -> set[str]:
    """What the losses of this stage can be computed from."""
    given = {"scores", "targets"} if settings.encoder != "cross" else set()
    given |= {"group"} if settings.negatives else set()
    return given | ({"teacher"} if settings.teacher else set())


def _check_teacher(
    settings: FinetuneSettings, learnt_by: Sequence[Loss], sources: Sequence[Source]
) -> None:
    """Refuses a teacher whom nobody asks."""
    asked = any("teacher" in loss.needs for loss in learnt_by)
    asked |= any(source.settings.margin_by == "teacher" for source in sources)
    if settings.teacher is not None and not asked:
        raise SettingsError(
            f"teacher = {settings.teacher!r} would not be asked: no loss learns from it, and no "
            "negatives are chosen by it",
            where="teacher",
            allowed="a teacher with a loss that needs one (kl, margin_mse), or with "
            "negatives.margin_by=teacher",
            remedy="--set losses.kl.weight=1.0, or leave the teacher out",
        )


def check_split(collection: Collection, settings: FinetuneSettings) -> None:
    """Refuses a split that the collection does not have, and offers none that is to measure by."""
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


def _say_what_is_no_test_any_more(trained: str, chosen_by: str | None) -> None:
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


def _mine(
    sources: Sequence[Source],
    corpus: TrainingCorpus,
    labelled: LabelledQueries,
    settings: FinetuneSettings,
    teacher: Teacher | None = None,
) -> Rows:
    file = Path(settings.output) / _NEGATIVES_FILE
    if not file.is_file():
        processes = PartialState().num_processes
        epochs = epochs_of(settings.training, len(labelled.queries), sources, processes)
        mined = mine(sources, corpus, labelled, epochs, settings.training.seed, teacher)
        if settings.audit:
            found = audit(mined, sources, corpus, labelled, settings.split, teacher)
            write_page(found, file.with_suffix(".html"))
            notice(f"{found.verdict}\na page to read: {file.with_suffix('.html')}")
        partial = file.with_name(f".partial.{file.name}")
        with writing(file):
            np.save(partial, mined.rows, allow_pickle=False)
            partial.replace(file)
    rows: Rows = np.load(file, mmap_mode="r", allow_pickle=False)
    return rows
