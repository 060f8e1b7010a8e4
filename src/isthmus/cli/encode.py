"""`isthmus encode`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import settings_option


def encode(
    texts: Annotated[str, typer.Argument(help="Documents: anything `index` reads; or queries.")],
    model: Annotated[str, typer.Option(help="The encoder: a run, a folder, a hub name.")],
    output: Annotated[
        str, typer.Option(help="A new file: .npy (a matrix, ids beside it) or .parquet.")
    ],
    queries: Annotated[
        bool, typer.Option("--queries", help="The texts are queries (jsonl or tsv).")
    ] = False,
    settings: Annotated[list[str] | None, settings_option("encode", "exact=true")] = None,
) -> None:
    """Write the vectors of texts into a file, for tools of your own.

    Pooling, similarity, lengths and prompts are those that the model's files, or its name, tell;
    --set pooling=mean and others say otherwise, as for `index`.

    Examples: isthmus encode docs/ --model runs/dense --output docs.parquet; isthmus encode
    queries.jsonl --queries --model runs/dense --output queries.npy
    """
    from isthmus.progress import result

    result(f"vectors: {isthmus.encode(texts, output, model, queries=queries, settings=settings)}")
