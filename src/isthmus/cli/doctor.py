"""`isthmus doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus


def doctor(
    folder: Annotated[
        str | None,
        typer.Argument(metavar="INDEX", help="An index or hybrid, of which to verify every byte."),
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="A corpus to read through.")] = None,
    collection: Annotated[str | None, typer.Option(help="A judged collection to check.")] = None,
    model: Annotated[str | None, typer.Option(help="A model to load.")] = None,
    index: Annotated[str | None, typer.Option(help="An index or hybrid; INDEX is shorter.")] = None,
) -> None:
    """Check versions, hardware, disk and, where named, data, model and index.

    With --quiet, versions and hardware are printed only where something is wrong with them.

    Example: isthmus doctor --collection beir:scifact --model bert-base-uncased;
    isthmus doctor indexes/dense
    """
    from rich.console import Console

    from isthmus.inspection.doctor import findings_table
    from isthmus.progress import console

    findings = isthmus.doctor(folder or index, corpus=corpus, collection=collection, model=model)
    if console.quiet:
        findings = [one for one in findings if one.verdict == "wrong" or not one.of_machine]
    if findings:
        Console().print(findings_table(findings))
    if any(finding.verdict == "wrong" for finding in findings):
        raise typer.Exit(1)
