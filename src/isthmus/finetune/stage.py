"""One stage of fine-tuning: data and negatives made ready, an encoder trained, kept, described."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.collections import Collection, Problems, open_collection
from isthmus.config.output import claim, finish, is_complete, writing
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.loading import known_settings
from isthmus.encoders.query_terms import QUERY_TERMS_FILE
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.errors import InputError, SettingsError, choices
from isthmus.finetune.active_terms import StopWhenEmpty
from isthmus.finetune.mining import NEGATIVES, MiningSettings, Rows, draw_negatives
from isthmus.finetune.pairs import LabelledQueries, PairExamples, labelled_queries
from isthmus.finetune.regularization import regularizers
from isthmus.finetune.settings import FinetuneSettings
from isthmus.finetune.task import BiEncoderTask
from isthmus.nn.backbone import Backbone
from isthmus.nn.loading import model_fingerprint, model_folder
from isthmus.progress import notice
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.launch import main_process_first, wait_for_everyone
from isthmus.training.trainer import Trainer

_NEGATIVES_FILE = "negatives.npy"


def run(settings: FinetuneSettings) -> Path:
    """Trains what the settings say; returns the folder `final`.

    Run again after an interruption, it goes on from the last checkpoint.
    """
    mining = _source_of_negatives(settings)
    _check_kind(settings)
    sparse_by = regularizers(settings.regularizers)
    problems = Problems(settings.problems)
    collection = open_collection(settings.collection, problems)
    _check_split(collection, settings)
    name = model_folder(settings.model)
    output = Path(settings.output)
    final = output / "final"
    with main_process_first():
        fingerprint = collection.fingerprint()
        data = {"collection": fingerprint, "model": model_fingerprint(name) or settings.model}
        # Not the output: the folder may move, and be named in several ways.
        identity = {"settings": settings.model_dump(exclude={"output"}), "data": data}
        claim(output, "finetune", identity)
        if is_complete(output):
            notice(f"{output} is complete already")
            return final
        encoder = _encoder(name, settings)
        _say_what_changes(settings)
        source = f"{fingerprint} {settings.problems}"
        serialised = encoder.tokenizer.serialised
        corpus = tokenise(collection.documents(), source, serialised, settings.titles)
        remembered = corpus.remember(problems.summary())
        labelled = labelled_queries(collection, settings.split, corpus, problems)
        # The documents' problems are known anew or remembered; the judgements' are always new.
        summary = problems.summary()
        for message in (remembered if remembered not in summary else "", summary):
            if message:
                notice(message)
        negatives = None
        if mining is not None:
            negatives = _mine(mining, collection, labelled, corpus, settings)
    group = 1 if mining is None else 1 + mining.settings.num_negatives
    task = BiEncoderTask(encoder, group, settings.temperature, sparse_by)
    examples = PairExamples(labelled, negatives, group, corpus, encoder.tokenizer, encoder.settings)
    trainer = Trainer(task, examples, settings.training, output, description="fine-tune")
    if settings.encoder == "sparse":
        trainer.add_callback(StopWhenEmpty())
    history = trainer.fit()
    if trainer.is_world_process_zero():
        with writing(final):
            task.save(final)
        finish(output, {"queries": len(examples), "log": history})
    wait_for_everyone()
    return final


def _say_what_changes(settings: FinetuneSettings) -> None:
    known = None
    with suppress(InputError):  # pooled in a way that isthmus does not know: a new one is no change
        known = known_settings(settings.model)
    chosen = settings if settings.encoder == "dense" else settings.sparse
    for key in ("pooling", "similarity", "form", "query"):
        now, then = getattr(chosen, key, None), getattr(known, key, None)
        if None not in (now, then) and now != then:
            notice(f"{settings.model} was made with {key}={then}; it is trained with {now} here")


def _encoder(name: str, settings: FinetuneSettings) -> DenseEncoder | SparseEncoder:
    tokenizer = Tokenizer.load(name)
    backbone = Backbone.load(name, "keep", settings.training.dropout, settings.training.seed)
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
    foreign = {"dense": ("sparse", "regularizers"), "sparse": ("pooling", "similarity")}
    for key in foreign[settings.encoder]:
        value, default = getattr(settings, key), fields[key].default
        if value != default:
            shown = value.model_dump(exclude_defaults=True) if key == "sparse" else value
            other = "sparse" if settings.encoder == "dense" else "dense"
            raise SettingsError(
                f"{key} = {shown!r} means nothing to a {settings.encoder} encoder",
                where=key,
                allowed=f"{key} with encoder={other}",
                remedy=f"--set encoder={other}, or leave {key} out",
            )


def _source_of_negatives(settings: FinetuneSettings) -> Any:
    if settings.negatives is None:
        return None
    values = dict(settings.negatives)
    source = NEGATIVES.load(str(values.pop("name", None)), "negatives")
    return source(source.Settings.parse(values, "negatives", under="negatives"))


def _check_split(collection: Collection, settings: FinetuneSettings) -> None:
    if settings.split not in collection.splits():
        raise InputError(
            f"the collection has no split {settings.split!r}",
            where=f"{settings.collection}, split",
            allowed=choices(settings.split, collection.splits()),
            remedy="--set split=NAME, or add judgements to train on",
        )


def _mine(
    source: Any,
    collection: Collection,
    labelled: LabelledQueries,
    corpus: TokenisedCorpus,
    settings: FinetuneSettings,
) -> Rows:
    output = Path(settings.output)
    file = output / _NEGATIVES_FILE
    if not file.is_file():
        mining: MiningSettings = source.settings
        epochs = math.ceil(settings.training.num_train_epochs)
        rankings = source.rankings(collection, labelled.queries, settings.titles, output)
        drawn = draw_negatives(
            rankings, labelled.positives, corpus, mining, epochs, settings.training.seed
        )
        partial = file.with_name(f".partial.{file.name}")
        with writing(file):
            np.save(partial, drawn, allow_pickle=False)
            partial.replace(file)
    rows: Rows = np.load(file, mmap_mode="r", allow_pickle=False)
    return rows
