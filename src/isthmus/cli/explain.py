"""`isthmus explain`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Json, Model, Reranker, settings_option, show


def explain(
    index: Annotated[
        str, typer.Argument(help="An index folder, also of several, or what `tune` wrote.")
    ],
    query: Annotated[str, typer.Argument(help="What was looked for.")],
    document: Annotated[str, typer.Argument(help="The id of the document, found or not.")],
    hybrid: Annotated[
        list[str] | None,
        typer.Option("--with", help="Another index that was fused in, as in `search`. Repeatable."),
    ] = None,
    rerank: Reranker = None,
    model: Model = None,
    as_json: Json = False,
    settings: Annotated[list[str] | None, settings_option("explain", "by=passage")] = None,
) -> None:
    """Show why a document matched a query: what adds up to its score, and its rank.

    BM25 and sparse: what each term adds. Dense: how much the score falls without each sentence.
    Several indexes: each by itself, and how they were fused. Re-ranked: before and after. Of a
    document in passages, the passage that counts.

    Examples: isthmus explain idx "what is a bottleneck" doc42; isthmus explain idx "a query" doc42
    --with indexes/bm25 --rerank runs/reranker
    """
    found = isthmus.explain(
        index, query, document, hybrid=hybrid or (), rerank=rerank, model=model, settings=settings
    )
    show(found, as_json)
