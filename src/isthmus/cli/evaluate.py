"""`isthmus evaluate`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import settings_option


def evaluate(
    runs: Annotated[list[str], typer.Argument(help="One or more TREC run files.")],
    qrels: Annotated[str, typer.Option(help="Judgements: TREC qrels or BEIR tsv.")],
    measures: Annotated[
        str | None, typer.Option(help="Names as in ir_measures, e.g. 'RR@10 nDCG@10 R@100 AP'.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="A folder for tables (md, tex), JSON and per-query scores.")
    ] = None,
    settings: Annotated[list[str] | None, settings_option("evaluate", "test=randomisation")] = None,
) -> None:
    """Measure runs against judgements; several runs are compared by paired tests.

    Example: isthmus evaluate bm25.trec dense.trec --qrels qrels/test.tsv --output report
    """
    from rich.console import Console

    report = isthmus.evaluate(runs, qrels, measures=measures, output=output, settings=settings)
    Console().print(report)
