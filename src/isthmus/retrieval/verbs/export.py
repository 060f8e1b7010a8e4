"""The verb `isthmus export`: an index brought into Milvus, or compared with what is there."""

from __future__ import annotations

from pathlib import Path
from typing import overload

from pydantic import Field

from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.output import reserved
from isthmus.errors import SettingsError
from isthmus.indexes.contents import Contents
from isthmus.indexes.milvus import Milvus
from isthmus.retrieval.engine_parity import Parity, parity


class ExportSettings(ReadingSettings):
    """The collection's name in Milvus, its dense search, and what `--verify` compares."""

    verb = "export"

    name: str = Field(
        "isthmus",
        pattern=r"^[a-z][a-z0-9_]*$",
        description="of the collection in Milvus: lower-case letters, digits, _",
    )
    hnsw: bool = Field(False, description="dense vectors get a graph: fast, and no longer exact")
    depth: int = Field(10, ge=1, le=10_000, description="documents per query, with --verify")
    model: str | None = Field(
        None,
        description="with --verify: the encoder, if it moved or is not on this disk yet",
    )


@overload
def export(
    index: str | Path,
    output: str | Path,
    hybrid: str | Path | None = None,
    *,
    settings: ExportSettings | Overrides = None,
) -> None: ...


@overload
def export(
    index: str | Path,
    output: str | Path | None = None,
    hybrid: str | Path | None = None,
    *,
    verify: str | None,
    queries: str | Path | None,
    depth: int | None = None,
    settings: ExportSettings | Overrides = None,
) -> Parity | None: ...


def export(
    index: str | Path,
    output: str | Path | None = None,
    hybrid: str | Path | None = None,
    *,
    verify: str | None = None,
    queries: str | Path | None = None,
    depth: int | None = None,
    settings: ExportSettings | Overrides = None,
) -> Parity | None:
    """Brings an index into Milvus: a path that ends in .db, or an address.

    `hybrid` is a second index of the same documents, whose vectors go with them. With `verify`, the
    address or path of a filled Milvus, nothing is written there: what comes back compares its
    answers to `queries` with those of the index, and a file `output` gets a line per query.
    """
    settings = ExportSettings.given(settings, {"depth": depth})
    if verify is not None and queries is not None and hybrid is None:
        file = None if output is None else Path(output)
        with reserved(file):
            milvus, problems = Milvus(verify, settings.name), settings.account()
            found = parity(index, milvus, queries, settings.depth, settings.model, problems)
            if file is not None:
                found.write(file)
        return found
    if verify is not None or queries is not None or depth is not None or output is None:
        raise SettingsError(
            "isthmus export takes an --output to write, or --verify with --queries and one index",
            "isthmus export INDEX --output PLACE [--with INDEX], or isthmus export INDEX "
            "--verify PLACE --queries FILE [--depth N]",
        )
    contents = Contents([Path(folder) for folder in (index, hybrid) if folder is not None])
    with reserved(None if "://" in str(output) else Path(output)):
        Milvus(str(output), settings.name).fill(contents, settings.hnsw)
    return None
