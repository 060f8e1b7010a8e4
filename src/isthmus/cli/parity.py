"""`isthmus parity`."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.cli.options import overrides_option


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command()(parity)


def parity(
    index: Annotated[str, typer.Argument(help="The index folder that was exported.")],
    to: Annotated[str, typer.Option(help="anserini, elasticsearch, milvus or opensearch.")],
    at: Annotated[
        str,
        typer.Option(
            help="Where it answers: an address, a path that ends in .db, or (anserini) "
            "the folder of the export."
        ),
    ],
    queries: Annotated[str, typer.Option(help="A file of queries (jsonl or tsv).")],
    depth: Annotated[int | None, typer.Option(help="Documents per query.")] = None,
    output: Annotated[str | None, typer.Option(help="A file for a line per query (tsv).")] = None,
    overrides: Annotated[list[str] | None, overrides_option("parity", "name=passages")] = None,
) -> None:
    """Compare the answers of an engine with those of the index it was filled from.

    Example: isthmus parity idx --to milvus --at milvus.db --queries queries.jsonl --depth 100
    """
    from rich.console import Console

    from isthmus.config import resolve
    from isthmus.retrieval import ParitySettings, parity

    values = resolve("parity", None, {"depth": depth}, overrides or ())
    settings = ParitySettings.parse(values, "isthmus parity")
    Console().print(parity(index, to, at, queries, output, settings).table())
