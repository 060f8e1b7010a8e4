"""`isthmus evaluate`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

import isthmus
from isthmus.cli.options import Json, Splits, settings_option, show

if TYPE_CHECKING:
    from isthmus import Report, SuiteReport


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
        list[str] | None,
        typer.Option(
            help="Instead: documents with judged queries, to be searched. Repeatable: then with "
            "averages, and on how many each system is best."
        ),
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
    examples: Annotated[
        int | None,
        typer.Option(help="Queries to show whose first documents differ between the systems."),
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
    evaluate --collection data/scifact --collection data/nfcorpus --models runs/dense bm25; isthmus
    evaluate bm25.trec dense.trec --qrels qrels/test.tsv --output report; isthmus evaluate
    dense.trec --qrels irds:beir/scifact --split test
    """
    options: Any = {
        "split": split, "depth": depth, "measures": measures, "examples": examples,
        "output": output, "settings": settings,
    }  # fmt: skip
    _show(_evaluated(collection or [], models or [], runs or [], qrels, options), as_json)


def _evaluated(
    collections: list[str], models: list[str], runs: list[str], qrels: str | None, options: Any
) -> Report | SuiteReport | dict[str, Report]:
    """The reports of one collection or of several."""
    if len(collections) > 1:
        return isthmus.evaluate_suite(collections, [*models, *runs], **options)
    alone, split = next(iter(collections), None), options["split"]
    if split and "," in split:  # a report of each
        options["split"] = split.split(",")
    found: Report | dict[str, Report] = isthmus.evaluate(
        runs, qrels, collection=alone, models=models, **options
    )
    return found


def _show(found: Report | SuiteReport | dict[str, Report], as_json: bool) -> None:
    """Prints a report, or one of every split."""
    from rich.console import Console

    if as_json and isinstance(found, dict):
        each = (f"{json.dumps(name)}: {report.to_json()}" for name, report in found.items())
        typer.echo(f"{{{', '.join(each)}}}")
    elif isinstance(found, dict):
        for name, report in found.items():
            Console().print(f"split {name}", style="bold", highlight=False)
            show(report, as_json=False)
    else:
        show(found, as_json)
