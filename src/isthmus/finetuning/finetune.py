"""The command `finetune`: an encoder trained on labelled queries, in one stage or several."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from isthmus.config import Overrides, resolve
from isthmus.config.recipes import earlier_run
from isthmus.config.settings import layers_of, only_shown
from isthmus.errors import SettingsError, choices
from isthmus.finetuning.settings import FinetuneSettings, resolved_stages


def finetune(
    collection: str | PathLike[str] | None,
    model: str | PathLike[str] | None,
    output: str | PathLike[str],
    *,
    recipe: str | PathLike[str] = "dense",
    overwrite: bool = False,
    settings: Overrides = None,
) -> Path:
    """The folder `final` of a model that was trained as `isthmus.finetune` says."""
    given = {"model": model, "collection": collection, "output": output}
    flags = {name: value and fspath(value) for name, value in given.items()}
    recipe = fspath(recipe)
    values = resolve("finetune", recipe, flags, settings)
    _refuse_new_stages(resolve("finetune", recipe), values)
    if only_shown():
        if values.get("stages") is None:
            FinetuneSettings.given(settings, flags, recipe)
        raise resolved_stages(values, layers_of("finetune", recipe, flags, settings))
    from isthmus.finetuning.pipeline import run
    from isthmus.finetuning.stages import assemble

    repeated = earlier_run(recipe, "finetune")
    others = {} if repeated is None else repeated["identity"].get("stages", {})
    # A stage of a pipeline refers to others, which are next to it.
    earlier = {name: Path(recipe).parent / folder for name, folder in others.items()}
    return run(assemble(values, f"recipe {recipe}", earlier), overwrite, repeated)


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
