"""Runs stages: each in a folder named by its content, and the last retriever published."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from isthmus.finetuning.stages import Pipeline, Stage, check_outside, within
from isthmus.finetuning.summary import SUMMARY, summary
from isthmus.finetuning.train import train
from isthmus.progress import notice
from isthmus.training.parallel import main_process_first, wait_for_everyone


def run(
    pipeline: Pipeline, overwrite: bool = False, repeated: Mapping[str, Any] | None = None
) -> Path:
    """Trains the stages that are not done yet; returns the folder `final`, the last retriever.

    A pipeline that replaces another one finds the stages that it shares with it. `repeated` is
    the snapshot of a run that the settings are of.
    """
    check_outside(pipeline)
    if pipeline.lone is not None:
        return train(pipeline.lone, overwrite, repeated)
    output, settings = pipeline.output, pipeline.written
    with ExitStack() as claims:
        with main_process_first():
            identity = pipeline.identity()
            notice_changes(repeated, identity)
            if overwrite:
                refuse_inside(output, {key: settings[key] for key in ("collection", "model")})
            other = _other(output, identity) if overwrite else None
            replaced = overwrite and other is None
            claims.enter_context(claimed(output, "finetune", other or identity, replaced))
        folders = train_all(pipeline.stages, output)
        results = {
            "stages": {name: folder.name for name, folder in folders.items()},
            "final": pipeline.last_retriever,
        }
        retriever = folders[pipeline.last_retriever] / "final"
        with main_process_first():
            if not _is_published(output, retriever, results):
                _publish(output, retriever, identity, results)
        wait_for_everyone()
    return output / "final"


def train_all(stages: Mapping[str, Stage], output: Path) -> dict[str, Path]:
    """Trains each stage that is not done yet; returns their folders, named by their content."""
    folders: dict[str, Path] = {}
    for number, (name, resolved) in enumerate(stages.items(), start=1):
        with within(name):
            stage = resolved.after(folders)
            folder = folders[name] = output / f"{name}-{stage.digest()}"
            done = is_complete(folder)
            notice(f"stage {number}/{len(stages)}: {folder}{' is done' if done else ''}")
            if not done:
                train(replace(stage, output=folder))
                gc.collect()  # the trainer is part of a cycle, which would keep its weights
    return folders


def _other(output: Path, identity: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The identity of another pipeline that wrote the folder; None where there is none.

    Its snapshot stays: it describes `final` until that of the new one is published.
    """
    if (output / SNAPSHOT).is_file():
        earlier = read_snapshot(output)
        found: Mapping[str, Any] = earlier["identity"]
        ours = earlier["verb"] == "finetune" and "stages" in found.get("settings", {})
        if ours and differences(found, json.loads(json.dumps(identity))):
            return found
    return None


def _is_published(output: Path, retriever: Path, results: Mapping[str, Any]) -> bool:
    """Whether `final` is this retriever, wherever an earlier process was killed."""
    if not is_complete(output) or read_snapshot(output).get("results") != results:
        return False
    return model_fingerprint(str(output / "final")) == model_fingerprint(str(retriever))


def _publish(
    output: Path, retriever: Path, identity: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    with whole_folder(output / "final") as partial:
        shutil.copytree(retriever, partial, dirs_exist_ok=True)
    write_snapshot(output, "finetune", identity, results)
    table = summary(output)
    assert table is not None, "the snapshot has just said which stages there are"
    with writing(output):
        (output / SUMMARY).write_text(table.markdown(), encoding="utf-8")
    finish_model(output, results)
