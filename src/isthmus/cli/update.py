"""`isthmus add`, `delete`, `merge` and `sync`."""

from __future__ import annotations

from typing import Annotated

import typer

import isthmus
from isthmus.cli.options import Model, settings_option


def add(
    index: Annotated[
        str, typer.Argument(help="An index folder of any kind, also of several indexes.")
    ],
    corpus: Annotated[str, typer.Option(help="What to add: anything `index` reads.")],
    model: Model = None,
    settings: Annotated[list[str] | None, settings_option("add", "problems=skip")] = None,
) -> None:
    """Add documents to an index; those whose ids are there already are replaced.

    All of them can be found once the command has printed its result, none before.

    Example: isthmus add idx --corpus more.jsonl
    """
    from isthmus.progress import result

    update = isthmus.add(index, corpus, model=model, settings=settings)
    result(
        f"added {update.added:,} documents, replaced {update.replaced:,}; the index has "
        f'{update.documents:,}\nnext: isthmus search {index} "a query"'
    )


def delete(
    index: Annotated[
        str, typer.Argument(help="An index folder of any kind, also of several indexes.")
    ],
    documents: Annotated[list[str] | None, typer.Argument(help="Ids of documents.")] = None,
    ids: Annotated[str | None, typer.Option(help="A file of ids, one in each line.")] = None,
    settings: Annotated[list[str] | None, settings_option("delete", "problems=skip")] = None,
) -> None:
    """Delete documents from an index: all that are named, or none where one is not in it.

    Examples: isthmus delete idx d17 d18; isthmus delete idx --ids withdrawn.txt --set problems=skip
    """
    from isthmus.progress import result

    update = isthmus.delete(index, documents or (), ids, settings=settings)
    result(f"deleted {update.deleted:,} documents; the index has {update.documents:,}")


def merge(
    index: Annotated[str, typer.Argument(help="An index folder that was added to.")],
    model: Model = None,
    settings: Annotated[list[str] | None, settings_option("merge", "hnsw=true")] = None,
) -> None:
    """Make an index one whole again: no segments, no traces of deleted documents.

    `add` and `delete` merge by themselves as far as searching needs it; this goes to the end, and
    builds a graph beside a dense one where that is wanted.

    Examples: isthmus merge idx; isthmus merge idx --set hnsw=true
    """
    from isthmus.progress import result

    update = isthmus.merge(index, model=model, settings=settings)
    result(f"the index is one whole of {update.documents:,} documents")


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
