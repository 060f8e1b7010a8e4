"""`isthmus tune`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Output, settings_option


def tune(
    indexes: Annotated[
        list[str],
        typer.Argument(help="Two or more indexes of one corpus, or one folder of several."),
    ],
    queries: Annotated[str, typer.Option(help="A file of queries (jsonl or tsv).")],
    qrels: Annotated[str, typer.Option(help="Their judgements: TREC qrels or BEIR tsv.")],
    output: Output,
    measure: Annotated[
        str | None, typer.Option(help="What the weights are tuned for; by default RR@10.")
    ] = None,
    settings: Annotated[list[str] | None, settings_option("tune", "fusion=reciprocal_rank")] = None,
) -> None:
    """Tune how much each of several indexes counts, and write a hybrid that `search` opens.

    A folder of several indexes (`index --with`) keeps the weights itself.

    Examples: isthmus tune indexes/dense indexes/bm25 --queries queries.jsonl --qrels qrels/dev.tsv
    --output indexes/hybrid; isthmus tune indexes/both --queries queries.jsonl --qrels qrels/dev.tsv
    --output runs/weights
    """
    from rich.console import Console

    from isthmus.progress import result

    tuning = isthmus.tune(indexes, queries, qrels, output, measure=measure, settings=settings)
    Console().print(tuning.table.terminal())
    result(f'hybrid: {tuning.folder}\nnext: isthmus search {tuning.folder} "a query"')
