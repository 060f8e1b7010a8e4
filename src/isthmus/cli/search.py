"""`isthmus search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import isthmus
from isthmus.cli.lines import answer_lines, show
from isthmus.cli.options import Json, Model, Reranker, Split, settings_option


def search(
    index: Annotated[
        str, typer.Argument(help="An index folder, also of several, or what `tune` wrote.")
    ],
    query: Annotated[
        str | None,
        typer.Argument(help="What to look for. Left out: answers line by line, loaded once."),
    ] = None,
    queries: Annotated[
        str | None, typer.Option(help="Instead: a file of queries (jsonl, tsv), or a collection.")
    ] = None,
    split: Split = None,
    run: Annotated[str | None, typer.Option(help="And the new TREC run file.")] = None,
    hybrid: Annotated[
        list[str] | None,
        typer.Option("--with", help="Another index to fuse with, BM25 say. Repeatable."),
    ] = None,
    rerank: Reranker = None,
    model: Model = None,
    depth: Annotated[int | None, typer.Option(help="Documents per query.")] = None,
    as_json: Json = False,
    settings: Annotated[list[str] | None, settings_option("search", "depth=20")] = None,
) -> None:
    """Search an index for one query, for one per line, or write a run file for many.

    With --json, every line of standard input has one line of answer; a query that failed has an
    `error` in it, and the exit code is then 1.

    Examples: isthmus search idx "what is a bottleneck"; isthmus search idx; isthmus search idx
    --queries q.jsonl --run out.trec; isthmus search idx --queries irds:beir/scifact --split test
    --run out.trec; isthmus search idx "a query" --rerank runs/reranker --set
    rerank.candidates=50; isthmus search idx "a query" --set hnsw=true
    """
    from isthmus.progress import result

    if query is None and queries is None and run is None:
        answer = isthmus.open_search(
            index, hybrid=hybrid or (), rerank=rerank, model=model, depth=depth, settings=settings
        )
        answer_lines(answer, as_json)
        return
    found = isthmus.search(
        index,
        query,
        queries,
        run,
        hybrid=hybrid or (),
        rerank=rerank,
        model=model,
        depth=depth,
        split=split,
        settings=settings,
    )
    if isinstance(found, list):
        show(found, as_json)
    else:
        result(f"run: {found}\nnext: isthmus evaluate {_qrels(queries, split)} {found}")


def _qrels(queries: str | None, split: str | None) -> str:
    """What follows --qrels in a command that measures the run."""
    if queries is None or Path(queries).is_file():
        return "…"
    return f"{queries} --split {split}" if split else queries
