"""`isthmus evaluate`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Json, settings_option, show


def evaluate(
    collection: Annotated[
        str,
        typer.Argument(help="A collection with judged queries; for run files also a qrels file."),
    ],
    systems: Annotated[
        list[str],
        typer.Argument(
            metavar="SYSTEM…",
            help="Models, indexes, run files, bm25, or several of them joined by + (A+B, fused).",
        ),
    ],
    split: Annotated[
        str, typer.Option(help="Split of the collection (default: test, or the only split).")
    ] = "test",
    measures: Annotated[
        str, typer.Option(help="Names as in ir_measures, e.g. 'RR@10 nDCG@10 R@100 AP'.")
    ] = "nDCG@10 RR@10 R@100",
    k: Annotated[int, typer.Option("--top-k", "-k", help="Number of documents per query.")] = 100,
    examples: Annotated[
        int,
        typer.Option(help="Number of queries to show whose first documents differ."),
    ] = 0,
    also: Annotated[
        list[str] | None, typer.Option(help="A further collection, for averages. Repeatable.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Folder for tables, JSON, per-query scores and runs."),
    ] = None,
    as_json: Json = False,
    settings: Annotated[list[str] | None, settings_option("evaluate", "test=randomisation")] = None,
) -> None:
    """Compare models, indexes or run files on judged queries, with significance tests.

    Models and bm25 are indexed and searched first; an index that holds a model's vectors of these
    documents is used. Indexes and rankings are kept in the cache.

    Examples: isthmus evaluate data/scifact runs/dense bm25 runs/dense+bm25; isthmus evaluate
    qrels/test.tsv bm25.trec dense.trec --output report
    """
    report = isthmus.evaluate(
        collection, systems, split=split, measures=measures, k=k, examples=examples,
        also=also or (), output=output, settings=settings,
    )  # fmt: skip
    show(report, as_json)
