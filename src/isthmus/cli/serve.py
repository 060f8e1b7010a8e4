"""`isthmus serve`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Reranker, settings_option

Indexes = Annotated[
    list[str], typer.Argument(metavar="INDEX…", help="Index folders of the same documents.")
]
Host = Annotated[str, typer.Option(help="Where to listen. Not on loopback, requests need a token.")]
Token = Annotated[
    str | None,
    typer.Option(
        help="Token that requests must bring. Default: $ISTHMUS_TOKEN; where one is needed, made "
        "and printed."
    ),
]
ReadWrite = Annotated[
    bool, typer.Option("--read-write", help="Let documents be added and deleted over the API.")
]
Judgements = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        help="Write judgements made on the page there, as a BEIR folder that `evaluate` and "
        "`finetune` read (split `judged`).",
    ),
]


def serve(
    indexes: Indexes,
    rerank: Reranker = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any free one.")] = 8080,
    token: Token = None,
    read_write: ReadWrite = False,
    judgements: Judgements = None,
    settings: Annotated[list[str] | None, settings_option("serve", "limits.k=50")] = None,
) -> None:
    """Serve indexes as a search page and an HTTP API (the extra `serve`).

    Every index is a retriever, and an index of several is also their hybrid; with --rerank the
    result is re-ranked. The page shows them side by side. A changed index is picked up while it
    runs. Ctrl-C or SIGTERM stops it once requests under way are answered. The API is described at
    /docs.

    Examples: isthmus serve indexes/both; isthmus serve indexes/bm25 indexes/dense --rerank
    runs/reranker; isthmus serve indexes/both --read-write --judgements judged; isthmus serve
    indexes/both --host 0.0.0.0 --port 80
    """
    isthmus.serve(
        indexes,
        rerank=rerank,
        host=host,
        port=port,
        token=token,
        read_write=read_write,
        judgements=judgements,
        settings=settings,
    )
