"""What the negatives of a fine-tuning are like, before it runs or after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from isthmus.config import Overrides, resolve
from isthmus.config.models import model_folder
from isthmus.config.output import SNAPSHOT, read_snapshot, reserved
from isthmus.errors import InputError, SettingsError, choices
from isthmus.finetuning.audit import Audit, audit, write_page
from isthmus.finetuning.mining import epochs_of, mine
from isthmus.finetuning.negatives import negative_sources
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.finetuning.stages import with_folders
from isthmus.finetuning.teachers import teacher_source
from isthmus.finetuning.training_collection import (
    check_split,
    stage_collection,
    tokenised_corpus,
    training_queries,
)
from isthmus.progress import notice
from isthmus.text.tokenizer import Tokenizer


def negatives(
    source: str | Path,
    *,
    model: str | None = None,
    recipe: str | Path = "dense",
    output: str | Path | None = None,
    settings: Overrides = None,
) -> Audit:
    """The audit of the negatives that a run was trained with, or that a recipe would draw.

    Rankings come from the cache, which training shares.
    """
    file, folder = None if output is None else Path(output), Path(source)
    with reserved(file):
        if (folder / SNAPSHOT).is_file():
            if model or settings:
                raise SettingsError(
                    f"{source} is a run, which is audited as it was trained",
                    "leave out --model and --set, or name its collection",
                )
            found = _audit(_of_run(folder))
        else:
            found = _audit(_of_collection(str(source), model, str(recipe), settings))
        if file is not None:
            write_page(found, file)
    return found


def _of_collection(
    collection: str, model: str | None, recipe: str, settings: Overrides
) -> FinetuneSettings:
    flags = {"model": model or "-", "collection": collection, "output": "-"}
    if (stages := resolve("finetune", recipe, flags, settings).get("stages")) is not None:
        named = ", ".join(map(str, stages)) if isinstance(stages, Mapping) else repr(stages)
        raise SettingsError(
            f"recipe {recipe}: there are several stages: {named}",
            "run them, then audit one: isthmus research negatives OUTPUT/STAGE-…",
        )
    chosen = FinetuneSettings.given(settings, flags, recipe)
    if model is None:
        raise SettingsError(
            f"a tokenizer is needed for the collection {collection!r}, which is no run",
            f"isthmus research negatives {collection} --model MODEL",
        )
    return chosen


def _audit(settings: FinetuneSettings) -> Audit:
    sources = negative_sources(settings.negatives, teacher=settings.teacher is not None)
    teaching = teacher_source(settings.teacher)
    if not sources:
        raise SettingsError(
            "negatives: there are none but those of the batch",
            "--set negatives=bm25, or another recipe",
        )
    problems, training = settings.account(), settings.training
    opened = stage_collection(settings, problems)
    check_split(opened, settings)
    tokenizer = Tokenizer.load(model_folder(settings.model))
    corpus = tokenised_corpus(opened, settings, opened.fingerprint(), tokenizer)
    labelled, _ = training_queries(opened, settings, corpus.rows, problems)
    if problems.counts:
        notice(problems.summary())
    teacher = None if teaching is None else teaching.open(corpus)
    epochs = epochs_of(training, len(labelled.queries), sources)
    mined = mine(sources, corpus, labelled, epochs, training.seed, teacher)
    return audit(mined, sources, corpus, labelled, settings.split, teacher)


def _of_run(folder: Path) -> FinetuneSettings:
    snapshot = read_snapshot(folder)
    identity = snapshot["identity"]
    if snapshot["verb"] != "finetune" or "stages" in identity["settings"]:
        stages = list(snapshot.get("results", {}).get("stages", {}).values())
        stages = stages or sorted(file.parent.name for file in folder.glob(f"*-*/{SNAPSHOT}"))
        raise InputError(
            f"{str(folder)!r} is not the output of one stage of fine-tuning",
            f"isthmus research negatives {folder / next(iter(stages), '…')}",
            choices("", stages),
        )
    # Stages that it refers to are next to it.
    others = {name: folder.parent / other for name, other in identity.get("stages", {}).items()}
    written = FinetuneSettings.parse({**identity["settings"], "output": str(folder)}, str(folder))
    return with_folders(written, others)
