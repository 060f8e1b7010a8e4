"""`isthmus export`."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.cli.options import overrides_option


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command()(export)


def export(
    index: Annotated[str, typer.Argument(help="An index folder.")],
    to: Annotated[str, typer.Option(help="anserini, elasticsearch, milvus or opensearch.")],
    output: Annotated[
        str,
        typer.Option(
            help="The folder to write; for milvus a path that ends in .db, or an address."
        ),
    ],
    hybrid: Annotated[
        str | None,
        typer.Option("--with", help="A second index of the same documents, dense beside sparse."),
    ] = None,
    overrides: Annotated[list[str] | None, overrides_option("export", "name=passages")] = None,
) -> None:
    """Bring the documents and vectors of an index into a search engine.

    Example: isthmus export idx --to milvus --output milvus.db; isthmus export sparse
    --with dense --to elasticsearch --output bulk --set name=passages
    """
    from isthmus.config import resolve
    from isthmus.progress import result
    from isthmus.retrieval import ExportSettings, export

    settings = ExportSettings.parse(
        resolve("export", None, None, overrides or ()), "isthmus export"
    )
    following = export(index, to, output, hybrid, settings)
    result(f"exported: {output}\nnext: {following or f'isthmus parity {index} --to {to} …'}")
