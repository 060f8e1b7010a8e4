"""`isthmus evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli.options import overrides_option


def add_to(app: typer.Typer) -> None:
    """Registers the verb."""
    app.command()(evaluate)


def evaluate(
    runs: Annotated[list[str], typer.Argument(help="One or more TREC run files.")],
    qrels: Annotated[str, typer.Option(help="Judgements: TREC qrels or BEIR tsv.")],
    measures: Annotated[
        str | None, typer.Option(help="Names as in ir_measures, e.g. 'RR@10 nDCG@10 R@100 AP'.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="A folder for tables (md, tex), JSON and per-query scores.")
    ] = None,
    overrides: Annotated[
        list[str] | None, overrides_option("evaluate", "test=randomisation")
    ] = None,
) -> None:
    """Measure runs against judgements; several runs are compared by paired tests.

    Example: isthmus evaluate bm25.trec dense.trec --qrels qrels/test.tsv --output report
    """
    from rich.console import Console

    from isthmus.config import resolve
    from isthmus.evaluation import EvaluationSettings, evaluate, report_table

    flags = {"measures": measures.replace(",", " ").split() if measures else None}
    values = resolve("evaluate", None, flags, overrides or ())
    settings = EvaluationSettings.parse(values, "isthmus evaluate")
    report = evaluate(runs, qrels, settings, Path(output) if output else None)
    Console().print(report_table(report).terminal())
