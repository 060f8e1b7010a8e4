"""`isthmus evaluate`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

import isthmus
from isthmus.cli.options import Json, Splits, settings_option

if TYPE_CHECKING:
    from isthmus import Report


def evaluate(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="TREC run files; with --collection also models, as for --models."),
    ] = None,
    qrels: Annotated[
        str | None,
        typer.Option(
            help="Judgements of run files: TREC qrels, BEIR tsv, or a collection, of which --split."
        ),
    ] = None,
    collection: Annotated[
        str | None, typer.Option(help="Instead: documents with judged queries, to be searched.")
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL…",
            help="What to compare on it: models, index folders, bm25, A+B (fused), or hybrid: "
            "every model named, each fused with BM25.",
        ),
    ] = None,
    split: Splits = None,
    depth: Annotated[int | None, typer.Option(help="Documents per query of a collection.")] = None,
    measures: Annotated[
        str | None, typer.Option(help="Names as in ir_measures, e.g. 'RR@10 nDCG@10 R@100 AP'.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(help="A folder for tables (md, tex), JSON, per-query scores and new runs."),
    ] = None,
    as_json: Json = False,
    settings: Annotated[list[str] | None, settings_option("evaluate", "test=randomisation")] = None,
) -> None:
    """Measure runs against judgements, or models on a collection; compare them by paired tests.

    With --collection it indexes and searches first, only the judged queries of the split, 100
    documents deep. Indexes and rankings stay in the cache: a second comparison begins with them.
    --set pooling=mean and other settings of how models encode are those of `index`.

    Examples: isthmus evaluate --collection data/scifact --models runs/dense bm25 hybrid; isthmus
    evaluate bm25.trec dense.trec --qrels qrels/test.tsv --output report; isthmus evaluate
    dense.trec --qrels irds:beir/scifact --split test
    """
    chosen: Any = split.split(",") if split and "," in split else split  # one report, or several
    found: Report | dict[str, Report] = isthmus.evaluate(
        runs or (),
        qrels,
        collection=collection,
        models=models or (),
        split=chosen,
        depth=depth,
        measures=measures,
        output=output,
        settings=settings,
    )
    _show(found, as_json)


def _show(found: Report | dict[str, Report], as_json: bool) -> None:
    """Prints a report, or one of every split."""
    from rich.console import Console

    if as_json and isinstance(found, dict):
        each = (f"{json.dumps(name)}: {report.to_json()}" for name, report in found.items())
        typer.echo(f"{{{', '.join(each)}}}")
    elif as_json and not isinstance(found, dict):
        typer.echo(found.to_json())
    else:
        for name, report in found.items() if isinstance(found, dict) else [("", found)]:
            if name:
                Console().print(f"split {name}", style="bold", highlight=False)
            Console().print(report)
