"""`isthmus explain`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Json, Reranker, settings_option, show


def explain(
    index: Annotated[
        str, typer.Argument(help="An index folder, also of several, or what `tune` wrote.")
    ],
    query: Annotated[str, typer.Argument(help="What was looked for.")],
    document: Annotated[str, typer.Argument(help="The id of the document, found or not.")],
    use: Annotated[str | None, typer.Option(help="The one retriever that answers.")] = None,
    rerank: Reranker = None,
    as_json: Json = False,
    settings: Annotated[list[str] | None, settings_option("explain", "by=passage")] = None,
) -> None:
    """Show why a document matched a query: what adds up to its score, and its rank.

    BM25 and sparse: what each term adds. Dense: how much the score falls without each sentence.
    Several indexes: each by itself, and how they were fused. Re-ranked: before and after. Of a
    document in passages, the passage that counts.

    Examples: isthmus explain idx "what is a bottleneck" doc42; isthmus explain idx "a query" doc42
    --use bm25 --rerank runs/reranker
    """
    found = isthmus.explain(index, query, document, use=use, rerank=rerank, settings=settings)
    show(found, as_json)
