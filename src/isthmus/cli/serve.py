"""`isthmus serve`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Model, Reranker, settings_option

Indexes = Annotated[
    list[str],
    typer.Argument(metavar="INDEX…", help="Index folders of one corpus, or what `tune` wrote."),
]
With = Annotated[
    list[str] | None,
    typer.Option("--with", help="Another index beside them, as for `search`. Repeatable."),
]
Host = Annotated[
    str | None, typer.Option(help="Where to listen: 127.0.0.1. Elsewhere, requests need a token.")
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="ISTHMUS_TOKEN",
        help="What requests must bring. Left out where one is needed: made and printed.",
    ),
]
Writable = Annotated[
    bool, typer.Option("--writable", help="Let documents be added and deleted over the API.")
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
    hybrid: With = None,
    rerank: Reranker = None,
    model: Model = None,
    host: Host = None,
    port: Annotated[int | None, typer.Option(help="8080; 0 takes any free one.")] = None,
    token: Token = None,
    writable: Writable = False,
    judgements: Judgements = None,
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
    settings: Annotated[list[str] | None, settings_option("serve", "limits.depth=50")] = None,
) -> None:
    """Serve indexes as a search page and an HTTP API (the extra `serve`).

    Every index is a retriever; several are also fused, and the result re-ranked with --rerank, all
    of them side by side on the page. Documents that are added, and newer indexes, are taken up
    while it runs. Ctrl-C or SIGTERM stops it once requests under way are answered. The API is
    described at /openapi.json.

    Examples: isthmus serve indexes/both; isthmus serve indexes/bm25 indexes/dense --rerank
    runs/reranker; isthmus serve indexes/both --writable --judgements judged; isthmus serve
    indexes/both --host 0.0.0.0 --port 80
    """
    isthmus.serve(
        indexes,
        hybrid=hybrid or (),
        rerank=rerank,
        model=model,
        host=host,
        port=port,
        token=token,
        writable=writable or None,
        judgements=judgements,
        title=title,
        settings=settings,
    )
