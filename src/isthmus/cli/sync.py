"""`isthmus sync`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Model, settings_option


def sync(
    corpus: Annotated[str, typer.Argument(metavar="DOCS", help="The documents as they are now.")],
    index: Annotated[str, typer.Argument(help="An index folder of any kind, also of several.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    model: Model = None,
    settings: Annotated[list[str] | None, settings_option("sync", "problems=skip")] = None,
) -> None:
    """Bring an index up to date with a folder or collection: new, changed and deleted documents.

    Only what is new or changed is encoded. All of it counts at once, at the end; interrupted, the
    same command goes on where it stopped. Exit code 1: some documents could not be read, and
    stay in the index.

    Examples: isthmus sync notes/ idx --dry-run; isthmus sync docs.jsonl idx
    """
    from isthmus.progress import result

    done = isthmus.sync(corpus, index, dry_run=dry_run, model=model, settings=settings)
    result(str(done))
    if done.undecided:
        raise typer.Exit(1)
