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
    documents: Annotated[
        str, typer.Option(help="Documents to measure on: a .jsonl file, a folder, beir:PATH, …")
    ],
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

    Examples: isthmus probe bert-base-uncased runs/bow/checkpoint-500 --documents docs.jsonl;
    isthmus probe runs/bow --documents data/scifact --output runs/probed
    """
    report = isthmus.probe(models, documents=documents, output=output, settings=settings)
    show(report, as_json)
