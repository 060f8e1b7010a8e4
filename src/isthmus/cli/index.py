"""`isthmus index`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Cluster, Output, settings_option


def index(
    corpus: Annotated[str, typer.Option(help="What to search: anything `pretrain` reads.")],
    output: Output,
    model: Annotated[
        str | None,
        typer.Option(help="The retriever: a run, a folder, a hub name; or bm25, the default."),
    ] = None,
    hybrid: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="MODEL,…",
            help="Several in one folder, searched and changed together: bm25,MODEL. Repeatable.",
        ),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(help="Of the documents, for bm25: german, de, …; none: any. Else by script."),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace another index there, once this one is whole."),
    ] = False,
    cluster: Cluster = None,
    settings: Annotated[list[str] | None, settings_option("index", "problems=skip")] = None,
) -> None:
    """Encode a corpus and build an index that `search` opens at once.

    Approximate search beside a dense one (hnsw=true) can be asked for now or later; nothing is
    encoded again.

    Long documents are searched by passages, cut at sentences and headings to what the model reads:
    files of a folder always, others with --set passages=true.

    Pooling, similarity, lengths and prompts are those that the model's files, or its name, tell;
    --set pooling=mean, --set 'query_prompt="query: "' and others say otherwise. The index keeps
    them for its queries.

    Examples: isthmus index --model runs/dense --corpus docs.jsonl --output idx; isthmus index
    --with bm25,runs/dense --corpus docs.jsonl --output idx; isthmus index
    --model runs/dense --corpus docs.jsonl --output idx --set hnsw=true
    """
    from isthmus.progress import result

    folder = isthmus.index(
        corpus,
        output,
        model,
        hybrid=hybrid or (),
        language=language,
        overwrite=overwrite,
        cluster=cluster,
        settings=settings,
    )
    result(f'index: {folder}\nnext: isthmus search {folder} "a query"')
