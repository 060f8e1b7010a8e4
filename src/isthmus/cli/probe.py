"""`isthmus probe`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Json, settings_option, show


def probe(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL…", help="Folders, hub names, runs or their checkpoints."),
    ],
    corpus: Annotated[
        str, typer.Option(help="What to measure on: a .jsonl file, a folder, beir:PATH, …")
    ],
    documents: Annotated[
        int | None,
        typer.Option(help="How many: 300, those that a training would hold out, if none is given."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="A folder for report.json and table.md.")
    ] = None,
    as_json: Json = False,
    settings: Annotated[
        list[str] | None, settings_option("probe", "measure=[masked_lm,retrieval]")
    ] = None,
) -> None:
    """Measure checkpoints without training: masked-LM loss and the other probes of `pretrain`.

    How well each knows the language of the corpus, how many of a text's words its vector names,
    what its decoder needs the vector for, and how it retrieves without labels.

    Examples: isthmus probe bert-base-uncased runs/bow runs/bow/checkpoint-500 --corpus docs.jsonl;
    isthmus probe runs/bow --corpus data/scifact --output runs/probed
    """
    report = isthmus.probe(models, corpus, documents=documents, output=output, settings=settings)
    show(report, as_json)
