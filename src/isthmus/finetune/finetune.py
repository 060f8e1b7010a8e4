"""The verb: turn an encoder into a retriever with labelled pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from isthmus.config import resolve
from isthmus.finetune.settings import FinetuneSettings
from isthmus.finetune.stage import run


def finetune(
    model: str | None = None,
    collection: str | None = None,
    output: str | None = None,
    recipe: str | None = "dense",
    overrides: Mapping[str, Any] | Iterable[str] = (),
) -> Path:
    """Trains a retriever on a judged collection; returns the folder `final`.

    Run again after an interruption, it goes on from the last checkpoint.
    """
    flags = {"model": model, "collection": collection, "output": output}
    settings = FinetuneSettings.parse(
        resolve("finetune", recipe, flags, overrides), where=f"recipe {recipe}"
    )
    return run(settings)
