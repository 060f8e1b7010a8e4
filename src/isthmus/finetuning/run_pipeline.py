"""Runs a pipeline: each stage in a folder named by its content, the last retriever published."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import xxhash

from isthmus.config.model_card import finish_model
from isthmus.config.models import model_fingerprint
from isthmus.config.output import (
    SNAPSHOT,
    claimed,
    differences,
    is_complete,
    notice_changes,
    read_snapshot,
    refuse_inside,
    whole_folder,
    write_snapshot,
    writing,
)
from isthmus.finetuning.pipeline import Pipeline, check_outside, within
from isthmus.finetuning.resolved import ResolvedStage, references
from isthmus.finetuning.run_stage import train
from isthmus.finetuning.stage_data import stage_collection
from isthmus.finetuning.summary import SUMMARY, summary
from isthmus.progress import notice
from isthmus.training.parallel import main_process_first, wait_for_everyone


def run(
    pipeline: Pipeline, overwrite: bool = False, repeated: Mapping[str, Any] | None = None
) -> Path:
    """Runs the stages that are not done yet; returns the folder `final`, the last retriever.

    A pipeline that replaces another one finds the stages that it shares with it. `repeated` is
    the snapshot of a run that the settings are of.
    """
    with ExitStack() as claims:
        return _run(pipeline, claims, overwrite, repeated)


def _run(
    pipeline: Pipeline, claims: ExitStack, overwrite: bool, repeated: Mapping[str, Any] | None
) -> Path:
    output = pipeline.output
    settings = {key: value for key, value in pipeline.written.items() if key != "output"}
    check_outside(pipeline)
    with main_process_first():
        data = {name: _outside(stage) for name, stage in pipeline.stages.items()}
        described = {"settings": settings, "data": data}
        notice_changes(repeated, described)
        if overwrite:
            refuse_inside(output, {key: settings[key] for key in ("collection", "model")})
        other = _other(output, described) if overwrite else None
        replaced = overwrite and other is None
        claims.enter_context(claimed(output, "finetune", other or described, replaced))
    folders: dict[str, Path] = {}
    for number, (name, resolved) in enumerate(pipeline.stages.items(), start=1):
        with within(name):
            stage = resolved.after(folders)
            folder = folders[name] = output / f"{name}-{digest(stage)}"
            done = is_complete(folder)
            notice(f"stage {number}/{len(pipeline.stages)}: {folder}{' is done' if done else ''}")
            if not done:
                train(stage.into(folder))
                gc.collect()  # the trainer is part of a cycle, which would keep its weights
    results = {
        "stages": {name: folder.name for name, folder in folders.items()},
        "final": pipeline.last_retriever,
    }
    retriever = folders[pipeline.last_retriever] / "final"
    with main_process_first():
        if not _is_published(output, retriever, results):
            _publish(output, retriever, described, results)
    wait_for_everyone()
    return output / "final"


def digest(stage: ResolvedStage) -> str:
    """Eight hexadecimal digits of a stage's identity: settings, earlier stages, data."""
    collection = stage_collection(stage.settings, stage.settings.account())
    identity = stage.identity(collection.fingerprint())
    return xxhash.xxh3_64_hexdigest(json.dumps(identity, sort_keys=True).encode())[:8]


def _outside(stage: ResolvedStage) -> dict[str, Any]:
    """The data of a stage that no other stage makes."""
    collection = stage_collection(stage.settings, stage.settings.account())
    made = {path.partition(".")[0] for path in references(stage.written)}
    return stage.data(collection.fingerprint(), made)


def _other(output: Path, described: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The identity of another pipeline that wrote the folder; None where there is none.

    Its snapshot stays: it describes `final` until that of the new one is published.
    """
    if (output / SNAPSHOT).is_file():
        earlier = read_snapshot(output)
        found: Mapping[str, Any] = earlier["identity"]
        ours = earlier["verb"] == "finetune" and "stages" in found.get("settings", {})
        if ours and differences(found, json.loads(json.dumps(described))):
            return found
    return None


def _is_published(output: Path, retriever: Path, results: Mapping[str, Any]) -> bool:
    """Whether `final` is this retriever, wherever an earlier process was killed."""
    if not is_complete(output) or read_snapshot(output).get("results") != results:
        return False
    return model_fingerprint(str(output / "final")) == model_fingerprint(str(retriever))


def _publish(
    output: Path, retriever: Path, described: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    with whole_folder(output / "final") as partial:
        shutil.copytree(retriever, partial, dirs_exist_ok=True)
    write_snapshot(output, "finetune", described, results)
    table = summary(output)
    assert table is not None, "the snapshot has just said which stages there are"
    with writing(output):
        (output / SUMMARY).write_text(table.markdown(), encoding="utf-8")
    finish_model(output, results)
