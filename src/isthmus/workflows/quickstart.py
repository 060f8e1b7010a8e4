"""The main job on an embedded default: from documentation strings to an adapted search engine."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.console import Console

from isthmus.collections.formats.beir import write_beir
from isthmus.collections.formats.docstrings import Docstrings
from isthmus.config import Overrides, Settings
from isthmus.config.output import claimed, finish
from isthmus.errors import SettingsError
from isthmus.evaluation import Report
from isthmus.progress import notice
from isthmus.records import Query
from isthmus.retrieval.hybrid import HybridSearcher
from isthmus.retrieval.searcher import open_searcher
from isthmus.retrieval.verbs.search import hits
from isthmus.workflows.adapt import run as run_adapt
from isthmus.workflows.adapt_settings import AdaptSettings


class QuickstartSettings(Settings):
    """Which documentation, which encoder, and how it is adapted."""

    verb = "quickstart"

    output: str = Field(description="the folder to write")
    packages: list[str] = Field(description="import names; stdlib is the standard library")
    limit_per_package: int = Field(ge=1, description="documents of each package at most")
    splits: dict[str, list[str]] = Field(description="packages held out for test")
    query: str = Field(description="the search to end with")
    model: str = Field(description="the encoder to adapt")
    adapt: dict[str, Any] = Field({}, description="what differs from the recipe adapt-quick")


def quickstart(
    output: str = "runs/quickstart",
    recipe: str = "quickstart",
    *,
    settings: QuickstartSettings | Overrides = None,
) -> Report:
    """Collects docstrings, adapts an encoder to them, compares and searches; returns the table.

    Interrupted and run again, every finished step is kept and the unfinished one resumes.
    """
    return run(QuickstartSettings.given(settings, {"output": output}, recipe))


def run(settings: QuickstartSettings) -> Report:
    """Runs a quickstart from complete settings; returns the comparison."""
    began = time.monotonic()
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise SettingsError(
            "the quickstart is for one process, and torchrun started several",
            "run it without torchrun; isthmus adapt takes several processes",
        )
    output = Path(settings.output)
    corpus, place = str(output / "collection"), output / "adapted"
    flags = {
        "documents": corpus, "labels": corpus, "model": settings.model, "output": str(place)
    }  # fmt: skip
    adaptation = AdaptSettings.given(settings.adapt, flags, "adapt-quick")
    console = Console()
    with claimed(output, "quickstart", {"settings": settings.model_dump(exclude={"output"})}):
        if not Path(corpus).is_dir():
            notice("collect the documentation strings of this machine's Python packages")
            found = Docstrings(settings.packages, settings.splits, settings.limit_per_package)
            write_beir(found, Path(corpus))
        report = run_adapt(adaptation)
        assert report is not None, "the collection has queries to test with"
        console.print(report)
        retriever, bm25 = (place / "index" / name for name in ("adapted-labels", "bm25"))
        hybrid = HybridSearcher([open_searcher(retriever), open_searcher(bm25)])
        (ranking,) = hybrid.search([Query("query", settings.query)], 5)
        console.print(hits(hybrid, ranking, settings.query))
        command = f'isthmus search {retriever} "{settings.query}" --with {bm25}'
        seconds = time.monotonic() - began
        finish(output, {"seconds": seconds, "search": command})
    lines = [
        f"done in {seconds / 60:.1f} minutes; report in {place / 'report.md'}; search on:",
        f"  {command}",
        "your own documents (a folder of .md, .txt or .html files), without labels:",
        f"  isthmus adapt FOLDER --model {settings.model} --output runs/mine",
        '  isthmus search runs/mine/index/adapted "a query" --with runs/mine/index/bm25',
    ]
    console.print("\n".join(lines), soft_wrap=True, highlight=False)
    return report
