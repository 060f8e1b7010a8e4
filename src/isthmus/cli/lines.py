"""Questions and answers line by line: a prompt on a terminal, plain lines from a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer
from rich.console import Console

if TYPE_CHECKING:
    from isthmus import Hits


def show(hits: Hits, as_json: bool) -> None:
    """Prints hits as a table, or as one line of JSON."""
    if as_json:
        found = [
            {"rank": rank, "score": hit.score, "id": hit.id, "title": hit.title}
            | ({"place": hit.place} if hit.place else {})
            | {"snippet": hit.snippet}
            for rank, hit in enumerate(hits, start=1)
        ]
        typer.echo(json.dumps({"query": hits.query, "hits": found}, ensure_ascii=False))
    else:
        Console().print(hits)


def answer_lines(answer: Callable[[str], Hits], as_json: bool) -> None:
    """Prints the answer to every line of standard input; one without an answer says why."""
    from isthmus.errors import IsthmusError, visible

    for line in _lines():
        try:
            show(answer(line), as_json)
        except IsthmusError as error:
            sys.stderr.write(visible(f"error: {error}\n"))


def _lines() -> Iterator[str]:
    """The lines that hold more than spaces, without these."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 (the prompt edits lines and remembers them)

        sys.stderr.write("a query per line; Ctrl-D ends\n")
        given = iter(_prompted, None)
    else:
        # Bytes that are no UTF-8 become half surrogates, which a search refuses by name.
        given = (raw.decode(errors="surrogateescape") for raw in sys.stdin.buffer)
    yield from filter(None, (line.strip() for line in given))


def _prompted() -> str | None:
    try:
        return input("query> ")
    except EOFError:
        return None
