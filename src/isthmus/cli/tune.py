"""`isthmus tune`."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.cli.options import Output, overrides_option


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command()(tune)


def tune(
    indexes: Annotated[list[str], typer.Argument(help="Two or more indexes of one corpus.")],
    queries: Annotated[str, typer.Option(help="A file of queries (jsonl or tsv).")],
    qrels: Annotated[str, typer.Option(help="Their judgements: TREC qrels or BEIR tsv.")],
    output: Output,
    measure: Annotated[
        str | None, typer.Option(help="What the weights are tuned for; RR@10 unless told.")
    ] = None,
    overrides: Annotated[
        list[str] | None, overrides_option("tune", "fusion=reciprocal_rank")
    ] = None,
) -> None:
    """Tune how much each of several indexes counts, and write a hybrid that `search` opens.

    Example: isthmus tune indexes/dense indexes/bm25 --queries queries.jsonl --qrels qrels/dev.tsv
    --output indexes/hybrid
    """
    from rich.console import Console

    from isthmus.config import resolve
    from isthmus.progress import result
    from isthmus.retrieval import TuneSettings, tune

    values = resolve("tune", None, {"measure": measure}, overrides or ())
    tuning = tune(indexes, queries, qrels, output, TuneSettings.parse(values, "isthmus tune"))
    Console().print(tuning.table.terminal())
    result(f'hybrid: {tuning.folder}\nnext: isthmus search {tuning.folder} "a query"')
