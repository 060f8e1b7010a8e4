"""The main job on an embedded default: from documentation strings to an adapted search engine."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from isthmus.collections.formats.beir import write_beir
from isthmus.collections.formats.docstrings import Docstrings
from isthmus.config import Overrides, Settings
from isthmus.config.output import claimed, finish
from isthmus.errors import SettingsError
from isthmus.progress import notice
from isthmus.workflows.adapt import Adaptation
from isthmus.workflows.adapt import run as run_adapt
from isthmus.workflows.adapt_settings import AdaptSettings


class QuickstartSettings(Settings):
    """Which documentation, which encoder, and how it is adapted."""

    verb = "quickstart"

    output: str = Field(description="Output folder")
    packages: list[str] = Field(description="Import names of packages; stdlib: standard library")
    limit_per_package: int = Field(ge=1, description="Maximum number of documents of each package")
    splits: dict[str, list[str]] = Field(description="Packages whose queries are held out for test")
    query: str = Field(description="Query of the search that is suggested in the end")
    model: str = Field(description="Embedding model to adapt")
    adapt: dict[str, Any] = Field({}, description="Changes of the recipe adapt-quick")


def quickstart(
    output: str | Path = "runs/quickstart",
    *,
    settings: QuickstartSettings | Overrides = None,
) -> Adaptation:
    """The adaptation of an encoder to documentation strings; as `isthmus.quickstart`."""
    return run(QuickstartSettings.given(settings, {"output": str(output)}, "quickstart"))


def run(settings: QuickstartSettings) -> Adaptation:
    """Runs a quickstart from complete settings."""
    began = time.monotonic()
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise SettingsError(
            "the quickstart is for one process, and torchrun started several",
            "run it without torchrun; isthmus adapt takes several processes",
        )
    output = Path(settings.output)
    corpus = str(output / "collection")
    flags = {
        "documents": corpus, "train_on": corpus, "model": settings.model,
        "output": str(output / "adapted"),
    }  # fmt: skip
    adaptation = AdaptSettings.given(settings.adapt, flags, "adapt-quick")
    with claimed(output, "quickstart", {"settings": settings.model_dump(exclude={"output"})}):
        if not Path(corpus).is_dir():
            notice("collect the documentation strings of this machine's Python packages")
            found = Docstrings(settings.packages, settings.splits, settings.limit_per_package)
            write_beir(found, Path(corpus))
        adapted = run_adapt(adaptation)
        finish(output, {"seconds": time.monotonic() - began})
    return replace(adapted, query=settings.query)
