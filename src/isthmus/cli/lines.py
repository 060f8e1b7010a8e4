"""Questions and answers line by line: a prompt on a terminal, plain lines from a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from isthmus import Hit, Hits


def show(hits: Hits, as_json: bool) -> None:
    """Prints hits as a table, or as one line of JSON."""
    if as_json:
        found = [_fields(rank, hit) for rank, hit in enumerate(hits, start=1)]
        _print_json(hits.query, found, notice=hits.notice)
    else:
        Console().print(hits)


def _fields(rank: int, hit: Hit) -> dict[str, Any]:
    """A hit as JSON has it, with the place of its passage in words and in numbers."""
    found = {"rank": rank, "score": hit.score, "id": hit.id, "title": hit.title}
    if (one := hit.passage) is not None:
        found |= {"place": hit.place, "heading": one.heading, "passage": one.number}
        found |= {"start": one.start, "end": one.end}
    return found | {"snippet": hit.snippet}


def _print_json(query: str, found: Sequence[dict[str, Any]] = (), **more: Any) -> None:
    """One line; of what follows, only what is not empty."""
    readable = query.encode(errors="backslashreplace").decode()  # of bytes that are not UTF-8
    texts = {key: text for key, text in more.items() if text}
    typer.echo(json.dumps({"query": readable, "hits": found, **texts}, ensure_ascii=False))


def answer_lines(answer: Callable[[str], Hits], as_json: bool) -> None:
    """Prints the answer to every line of standard input; one without an answer says why.

    As JSON, every line has one, a blank one too. Ends with exit code 1 if a query failed.
    """
    from isthmus.errors import IsthmusError, visible

    failed = False
    for line in _lines():
        if not line and not as_json:
            continue
        try:
            show(answer(line), as_json)
        except IsthmusError as error:
            failed = True
            sys.stderr.write(visible(f"error: {error}\n"))
            if as_json:
                _print_json(
                    line, error={"what": error.what, "fix": error.fix, "expected": error.expected}
                )
    if failed:
        raise typer.Exit(1)


def _lines() -> Iterator[str]:
    """The lines without the spaces around them."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 (the prompt edits lines and remembers them)

        sys.stderr.write("a query per line; Ctrl-D ends\n")
        given = iter(_prompted, None)
    else:
        # Bytes that are no UTF-8 become half surrogates, which a search refuses by name.
        given = (raw.decode(errors="surrogateescape") for raw in sys.stdin.buffer)
    yield from (line.strip() for line in given)


def _prompted() -> str | None:
    try:
        return input("query> ")
    except EOFError:
        return None
