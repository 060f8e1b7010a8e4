"""The main job: documents in; a retriever that knows them, its indexes and a report out."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from isthmus.collections import Collection, Problems, open_collection, open_corpus
from isthmus.config import Overrides
from isthmus.config.encoding import SparseForm
from isthmus.config.model_card import finish_model
from isthmus.config.models import model_fingerprint, model_folder, named_at
from isthmus.config.output import claimed, read_snapshot, whole_folder
from isthmus.config.recipes import merged
from isthmus.encoders.dense import DenseSettings
from isthmus.encoders.loader import load_encoder
from isthmus.encoders.model_settings import known_settings, stored_settings
from isthmus.encoders.sparse import SparseSettings
from isthmus.errors import InputError, SettingsError
from isthmus.evaluation import Report
from isthmus.finetuning.resolved import resolve_stage
from isthmus.finetuning.run_stage import run as run_stage
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.stage_data import check_split
from isthmus.progress import notice
from isthmus.training.parallel import main_process_first
from isthmus.workflows.adapt_settings import AdaptSettings
from isthmus.workflows.before_after import (
    AFTER,
    BEFORE,
    LABELLED,
    Judged,
    compare,
    compare_on_guard,
    verdict,
    write,
)  # fmt: skip
from isthmus.workflows.survey import survey

_SPLITS = ("test", "dev", "validation", "valid")


def adapt(
    documents: str,
    model: str,
    output: str,
    recipe: str | None = None,
    *,
    collection: str | None = None,
    guard: str | None = None,
    labels: str | None = None,
    settings: AdaptSettings | Overrides = None,
) -> Report | None:
    """Teaches a finished retriever its documents, without labels; returns the comparison.

    OUTPUT holds the retriever (final), its indexes and the report. Without judged queries there
    is no comparison, and None is returned. Run again after an interruption, it goes on. Without a
    recipe, it is `adapt` on a GPU and `adapt-quick` elsewhere.
    """
    if recipe is None:
        recipe = "adapt" if torch.cuda.is_available() else "adapt-quick"
    flags = {
        "documents": documents, "model": model, "output": output, "collection": collection,
        "guard": guard, "labels": labels,
    }  # fmt: skip
    return run(AdaptSettings.given(settings, flags, recipe))


def run(settings: AdaptSettings) -> Report | None:
    """Runs an adaptation from complete settings; returns the comparison, if queries are judged."""
    began = time.monotonic()
    output = Path(settings.output)
    with named_at("--model"):
        model_folder(settings.model)
        known = encoder_settings(settings)
    plain = known != known_settings(settings.model)
    start = str(output / "start") if plain else settings.model
    trained = stages(settings, known, start)
    judged = _judged(settings)
    guard = _checked(settings, trained)
    with ExitStack() as claims:
        with main_process_first():
            corpus = open_corpus(settings.documents, settings.account())
            sentence = survey(corpus, settings.documents)
            claims.enter_context(claimed(output, "adapt", _identity(settings)))
            if plain:
                _save_start(settings.model, known, output / "start")
        notice(sentence)
        for number, (name, stage) in enumerate(trained.items(), start=1):
            _say(began, f"{number}/{len(trained) + 2} {name}: learn {stage.collection}")
            run_stage(stage)
        if os.environ.get("RANK", "0") != "0":
            return None  # of several processes, the first does the rest
        _say(began, f"{len(trained) + 1}/{len(trained) + 2} index the documents")
        models = {BEFORE: start, **{name: stage.output for name, stage in trained.items()}}
        merges = {name: _merge(stage) for name, stage in trained.items()}
        report = _finish(settings, models, merges, judged, guard, began)
    _say(began, f"{len(trained) + 2}/{len(trained) + 2} done: {output / 'report.md'}")
    return report


def _finish(
    settings: AdaptSettings,
    models: Mapping[str, str],
    merges: Mapping[str, dict[str, Any] | None],
    judged: Judged | None,
    guard: Judged | None,
    began: float,
) -> Report | None:
    """Writes the retriever, its indexes and the report; returns the comparison, if there is one."""
    output, last = Path(settings.output), list(models)[-1]
    if not (output / "final").is_dir():
        with whole_folder(output / "final") as partial:
            shutil.copytree(Path(models[last]) / "final", partial, dirs_exist_ok=True)
    report = compare(settings, judged, models)
    guarded = compare_on_guard(settings, guard, {name: models[name] for name in (BEFORE, last)})
    sentences = verdict(merges, report, guarded)
    write(output, sentences, report, guarded)
    found: Mapping[str, Any] = read_snapshot(output).get("results") or {}
    seconds = found.get("seconds", time.monotonic() - began)  # of the run that did the work
    results = {"seconds": seconds, "verdict": sentences, "merge": merges}
    finish_model(output, results, [models[last]])
    return report


def _say(began: float, message: str) -> None:
    notice(f"\n[{time.monotonic() - began:5.0f} s] {message}")


def _identity(settings: AdaptSettings) -> dict[str, Any]:
    fingerprint = open_corpus(settings.documents, Problems("skip")).fingerprint()
    model = model_fingerprint(model_folder(settings.model)) or settings.model
    described = settings.model_dump(exclude={"output"})
    return {"settings": described, "data": {"documents": fingerprint, "model": model}}


def encoder_settings(settings: AdaptSettings) -> DenseSettings | SparseSettings:
    """How the encoder reads texts: what lies beside the model, and what settings say instead."""
    chosen = settings.chosen()
    stated = settings.encoder == "sparse" or {"pooling", "similarity"} <= set(chosen)
    if known_settings(settings.model) is None and not stated:
        raise InputError(
            f"--model {settings.model!r} does not say how it makes vectors of texts",
            "--set pooling=mean --set similarity=cosine (or encoder=sparse), as its authors say, "
            "or choose another model",
        )
    return stored_settings(settings.model, chosen).settings


def _save_start(model: str, known: DenseSettings | SparseSettings, folder: Path) -> None:
    """The encoder as it was, with what settings say of it beside its weights."""
    if not folder.is_dir():
        with whole_folder(folder) as partial:
            load_encoder(model, known, exact=True).save(partial)


@contextmanager
def _under(key: str) -> Iterator[None]:
    """Lets the advice of errors about a stage name its settings where `adapt` has them."""
    try:
        yield
    except SettingsError as error:
        error.fix = error.fix.replace("--set ", f"--set {key}.")
        raise


def _checked(settings: AdaptSettings, trained: Mapping[str, FinetuneSettings]) -> Judged | None:
    """The guard collection and its split, if any; raises on what would fail after training."""
    for name, stage in trained.items():
        with _under("dense" if name == AFTER else "finetune"):
            resolve_stage(stage)
    if settings.labels is not None:
        labelled = open_collection(settings.labels, settings.account())
        check_split(labelled, trained[LABELLED])
    if settings.guard is None:
        return None
    collection = open_collection(settings.guard, settings.account())
    splits = collection.splits()
    return collection, next((split for split in _SPLITS if split in splits), splits[0])


def stages(
    settings: AdaptSettings, known: DenseSettings | SparseSettings, start: str
) -> dict[str, FinetuneSettings]:
    """What is trained: on queries drawn from the documents, then on labels where there are any."""
    own = known.model_dump()
    for key in type(known).model_fields.keys() & settings.dense.keys():
        said = getattr(known, key)
        raise SettingsError(
            f"dense.{key} = {settings.dense[key]!r} would be lost: the model has {said!r}",
            f"--set {key}={settings.dense[key]}",
        )
    values = settings.dense
    if isinstance(known, SparseSettings) or known.similarity == "dot":
        values = merged(values, settings.dot)
    if isinstance(known, SparseSettings):
        values = merged(values, settings.sparse)
        own["sparse"] = {key: own.pop(key) for key in SparseForm.model_fields if key in own}
    values = merged(values, own)
    values |= {name: getattr(settings, name) for name in ("problems", "line_limit", "passages")}
    output = Path(settings.output)
    places = {"model": start, "collection": settings.documents, "output": str(output / "adapted")}
    found = {AFTER: FinetuneSettings.parse({**values, **places}, where="adapt", under="dense")}
    if settings.labels is not None:
        places = {
            "model": str(output / "adapted"),
            "collection": settings.labels,
            "output": str(output / "labelled"),
        }
        labelled = {**merged(values, settings.finetune), **places}
        found[LABELLED] = FinetuneSettings.parse(labelled, where="adapt", under="finetune")
    return found


def _judged(settings: AdaptSettings) -> Judged | None:
    """The collection and split that the report measures; None where no queries are judged."""
    named = settings.collection
    corpus = open_corpus(named or settings.documents, settings.account())
    splits = corpus.splits() if isinstance(corpus, Collection) else []
    if not splits and named is None:
        return None
    usual = next((split for split in _SPLITS if split in splits), None)
    split = settings.split or usual
    if split is None and named is None:
        return None
    if split not in splits:
        raise InputError(
            f"the collection has no split {split or _SPLITS[0]!r} to report on",
            f"--set split={splits[0]}" if splits else "choose another --collection",
            ", ".join(splits),
        )
    assert isinstance(corpus, Collection), "it has splits"
    return corpus, split


def _merge(stage: FinetuneSettings) -> dict[str, Any] | None:
    """What merging a finished stage returned; None where it is not merged."""
    found: dict[str, Any] | None = read_snapshot(Path(stage.output))["results"].get("merge")
    return found
