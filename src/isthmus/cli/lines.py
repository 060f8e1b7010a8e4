"""Questions and answers line by line: a prompt on a terminal, plain lines from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType


def answer_lines(answer: Callable[[str], RenderableType]) -> None:
    """Prints the answer to every line of standard input; one without an answer says why."""
    from isthmus.errors import IsthmusError, visible

    for line in _lines():
        try:
            Console().print(answer(line))
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
