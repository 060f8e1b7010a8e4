"""`isthmus sparsify`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Output, settings_option


def sparsify(
    model: Annotated[str, typer.Option(help="A sparse retriever: a run, a folder, a hub name.")],
    corpus: Annotated[str, typer.Option(help="What is searched: anything `index` reads.")],
    queries: Annotated[str, typer.Option(help="A file of queries (jsonl or tsv).")],
    qrels: Annotated[str, typer.Option(help="Their judgements: TREC qrels or BEIR tsv.")],
    output: Output,
    measure: Annotated[
        str | None, typer.Option(help="The measure of quality; by default RR@10.")
    ] = None,
    settings: Annotated[list[str] | None, settings_option("sparsify", "'terms=[16, 64]'")] = None,
) -> None:
    """Compare sizes of a sparse index: bytes, queries per second and quality by terms kept.

    Example: isthmus sparsify --model runs/sparse --corpus docs.jsonl --queries queries.jsonl
    --qrels qrels/dev.tsv --output runs/curve
    """
    from rich.console import Console

    from isthmus.progress import result

    found = isthmus.sparsify(
        model, corpus, queries, qrels, output, measure=measure, settings=settings
    )
    Console().print(found.table.terminal())
    result(
        f"curve: {found.folder}\n"
        "next: isthmus index … --set inverted.terms=K with the smallest K that is good enough"
    )
