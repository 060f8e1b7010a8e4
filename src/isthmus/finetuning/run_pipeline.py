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
    is_complete,
    read_snapshot,
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


def run(pipeline: Pipeline) -> Path:
    """Runs the stages that are not done yet; returns the folder `final`, the last retriever.

    Another pipeline in the same folder finds the stages that it shares with earlier ones.
    """
    with ExitStack() as claims:
        return _run(pipeline, claims)


def _run(pipeline: Pipeline, claims: ExitStack) -> Path:
    output = pipeline.output
    described: dict[str, Any] = {"settings": {**pipeline.written}}
    del described["settings"]["output"]
    check_outside(pipeline)
    with main_process_first():
        claims.enter_context(claimed(output, "finetune", _earlier(output) or described))
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
    snapshots = {name: read_snapshot(folder) for name, folder in folders.items()}
    described["data"] = {
        name: _outside(stage, snapshots[name]) for name, stage in pipeline.stages.items()
    }
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


def _outside(stage: ResolvedStage, snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a stage that no other stage has made."""
    made = {path.partition(".")[0] for path in references(stage.written)}
    data: dict[str, Any] = snapshot["identity"]["data"]
    return {key: value for key, value in data.items() if key not in made}


def _earlier(output: Path) -> Mapping[str, Any] | None:
    """The identity of the pipeline that wrote the folder before; None where there is none.

    Several pipelines may share a folder. The earlier snapshot stays: it describes `final` until
    the new one is published.
    """
    if (output / SNAPSHOT).is_file():
        earlier = read_snapshot(output)
        if earlier["verb"] == "finetune" and "stages" in earlier["identity"]["settings"]:
            described: Mapping[str, Any] = earlier["identity"]
            return described
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
