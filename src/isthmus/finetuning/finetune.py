"""The verb: turn an encoder into a retriever with labelled pairs, in one stage or in several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.config import Overrides, resolve
from isthmus.config.output import SNAPSHOT, to_resume
from isthmus.errors import SettingsError, choices
from isthmus.finetuning import pipeline, run_pipeline, run_stage
from isthmus.finetuning.settings import FinetuneSettings


def finetune(
    model: str | None = None,
    collection: str | None = None,
    output: str | None = None,
    recipe: str | None = "dense",
    *,
    settings: Overrides = None,
    resume: str | None = None,
) -> Path:
    """Trains a retriever on a judged collection; returns the folder `final`.

    Run again after an interruption, it goes on from the last checkpoint; of several stages, those
    that are done already are not done again. So does `resume` with the folder alone, which holds
    all other settings.
    """
    flags = {"model": model, "collection": collection, "output": output}
    if resume is not None:
        identity = to_resume("finetune", resume, {**flags, "set": settings or None})
        return again(identity, Path(resume), resume, where=f"{resume}/{SNAPSHOT}")
    values = resolve("finetune", recipe, flags, settings)
    _refuse_new_stages(resolve("finetune", recipe), values)
    return run(values, where=f"recipe {recipe}")


def run(values: Mapping[str, Any], where: str, earlier: Mapping[str, Path] | None = None) -> Path:
    """Trains from settings that are complete; `earlier` are folders that a lone stage refers to."""
    if values.get("stages") is not None:
        return run_pipeline.run(pipeline.assemble(values, where))
    alone = {key: value for key, value in values.items() if key != "stages"}
    return run_stage.run(FinetuneSettings.parse(alone, where), earlier)


def again(identity: Mapping[str, Any], folder: Path, output: str, where: str) -> Path:
    """Runs the identity of a folder again, in the same or another output; returns `final`."""
    # A stage of a pipeline refers to others, which lie beside it.
    earlier = {name: folder.parent / other for name, other in identity.get("stages", {}).items()}
    return run({**identity["settings"], "output": output}, where, earlier)


def _refuse_new_stages(recipe: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raises on a stage that no recipe has: a misspelt one would become a further stage."""
    known, chosen = recipe.get("stages"), values.get("stages")
    if known is None and isinstance(chosen, Mapping) and chosen:
        name = next(iter(chosen))
        raise SettingsError(
            f"--set stages.{name}: the recipe has no stages",
            "leave 'stages.' out, or choose a recipe with stages: --recipe three-stage",
        )
    if isinstance(known, Mapping) and isinstance(chosen, Mapping):
        for name in chosen:
            if name not in known:
                raise SettingsError(
                    f"--set stages.{name}: the recipe has no stage {name!r}",
                    "correct the name; to add a stage, write a recipe that builds on this one "
                    "(base: NAME)",
                    choices(name, known),
                )
