"""`isthmus export` and `isthmus encode`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import settings_option


def export(
    index: Annotated[str, typer.Argument(help="An index folder.")],
    output: Annotated[
        str | None,
        typer.Option(
            help="The Milvus to fill: a path that ends in .db, or an address. With --verify, a "
            "file for a line per query (tsv)."
        ),
    ] = None,
    hybrid: Annotated[
        str | None,
        typer.Option("--with", help="A second index of the same documents, dense beside sparse."),
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Export nothing, compare: the filled Milvus, a path that ends in .db, or an "
            "address.",
        ),
    ] = None,
    queries: Annotated[
        str | None, typer.Option(help="With --verify, a file of queries (jsonl or tsv).")
    ] = None,
    depth: Annotated[int | None, typer.Option(help="With --verify, documents per query.")] = None,
    settings: Annotated[list[str] | None, settings_option("export", "name=passages")] = None,
) -> None:
    """Bring the documents and vectors of an index into Milvus, or compare their answers.

    Examples: isthmus export idx --output milvus.db; isthmus export sparse --with dense
    --output both.db --set name=passages; isthmus export idx --verify milvus.db
    --queries queries.jsonl --depth 100
    """
    from isthmus.progress import result

    found = isthmus.export(
        index, output, hybrid, verify=verify, queries=queries, depth=depth, settings=settings
    )
    if found is None:
        comparison = f"isthmus export {index} --verify {output} --queries …"
        result(f"exported: {output}\nnext: {comparison}")
    else:
        from rich.console import Console

        Console().print(found.table())


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
