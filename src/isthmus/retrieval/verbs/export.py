"""The verb `isthmus export`: an index brought into a search engine, or compared with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

import xxhash
from pydantic import Field

from isthmus.collections.settings import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.output import claimed, finish, is_complete, reserved
from isthmus.errors import MismatchError, OutputError, SettingsError
from isthmus.indexes.contents import Contents
from isthmus.indexes.engines import ENCODERS, Engine, engines
from isthmus.indexes.manifest import Manifest
from isthmus.progress import notice
from isthmus.retrieval.engine_parity import Parity, parity

INDEXES = "indexes"  # where they lay, among the results
_IDENTITY = {"name", "approximate"}  # settings on which the exported files depend


class ExportSettings(ReadingSettings):
    """The collection's name in the engine, its dense search, and what `--verify` compares."""

    verb = "export"

    name: str = Field(
        "isthmus",
        pattern=r"^[a-z][a-z0-9_]*$",
        description="of the collection in the engine: lower-case letters, digits, _",
    )
    approximate: bool = Field(
        False, description="dense vectors get a graph: fast, and no longer exact"
    )
    depth: int = Field(10, ge=1, le=10_000, description="documents per query, with --verify")
    model: str | None = Field(
        None, description="with --verify: the encoder, if it moved, or if it was not used here yet"
    )


@overload
def export(
    index: str | Path,
    to: str,
    output: str | Path,
    hybrid: str | Path | None = None,
    *,
    settings: ExportSettings | Overrides = None,
) -> str: ...


@overload
def export(
    index: str | Path,
    to: str,
    output: str | Path | None = None,
    hybrid: str | Path | None = None,
    *,
    verify: str | None,
    queries: str | Path | None,
    depth: int | None = None,
    settings: ExportSettings | Overrides = None,
) -> str | Parity: ...


def export(
    index: str | Path,
    to: str,
    output: str | Path | None = None,
    hybrid: str | Path | None = None,
    *,
    verify: str | None = None,
    queries: str | Path | None = None,
    depth: int | None = None,
    settings: ExportSettings | Overrides = None,
) -> str | Parity:
    """What to do next with what was written; "" if the engine can be searched already.

    `hybrid` is a second index of the same documents, whose vectors go with them. With `verify`, the
    address or path of a filled engine, nothing is written there: what comes back compares its
    answers to `queries` with those of the index, and a file `output` gets a line per query.
    """
    settings = ExportSettings.given(settings, {"depth": depth})
    if verify is not None and queries is not None and hybrid is None:
        return _verified(index, to, verify, queries, output, settings)
    if verify is not None or queries is not None or depth is not None or output is None:
        raise SettingsError(
            "an export takes an output to write; --verify takes queries, and one index",
            where="isthmus export",
            allowed="--output PLACE [--with INDEX], or --verify PLACE --queries FILE [--depth N]",
            remedy="give one of the two",
        )
    return _exported(index, to, output, hybrid, settings)


def _verified(
    index: str | Path,
    to: str,
    at: str,
    queries: str | Path,
    output: str | Path | None,
    settings: ExportSettings,
) -> Parity:
    file = None if output is None else Path(output)
    with reserved(file):
        engine: Engine = engines.load(to, where="--to")(at, settings.name)
        problems = settings.account()
        found = parity(index, engine, at, queries, settings.depth, settings.model, problems)
        if file is not None:
            found.write(file)
    return found


def _exported(
    index: str | Path,
    to: str,
    output: str | Path,
    hybrid: str | Path | None,
    settings: ExportSettings,
) -> str:
    engine: Engine = engines.load(to, where="--to")(str(output), settings.name)
    indexes = [Path(folder) for folder in (index, hybrid) if folder is not None]
    contents = Contents(indexes)
    surplus = [field for field in contents.manifests if field not in engine.fields]
    if surplus:
        raise MismatchError(
            f"{to} takes no {surplus[0]} vectors",
            where="--to",
            allowed=f"{' and '.join(engine.fields)} vectors",
            remedy="choose another index, or another engine",
        )
    if not engine.files:
        with reserved(None if "://" in str(output) else Path(output)):
            engine.fill(contents, settings.approximate)
        return engine.following()
    if "://" in str(output):
        raise OutputError(
            f"{str(output)!r} is an address, but {to} is filled from files",
            where="--output",
            allowed="a folder",
            remedy="give a folder; the requests that load its files are printed",
        )
    identity: Mapping[str, Any] = {
        "engine": to,
        "settings": settings.model_dump(include=_IDENTITY),
        "fingerprints": {f: _fingerprint(m) for f, m in contents.manifests.items()},
        ENCODERS: contents.encoders,
    }
    folder = Path(output)
    with claimed(folder, "export", identity) as known:
        if known and is_complete(folder):
            notice(f"{folder} already holds this; nothing to do")
        else:
            engine.fill(contents, settings.approximate)
            # Not what makes two exports the same: an index may move, and its fingerprint stays.
            finish(folder, {"documents": len(contents), INDEXES: [str(one) for one in indexes]})
    return engine.following()


def _fingerprint(manifest: Manifest) -> str:
    """A fingerprint of everything that the index holds, in segments or whole."""
    held = manifest.model_dump(include={"files", "segments"})
    return xxhash.xxh3_128_hexdigest(json.dumps({**manifest.identity(), **held}).encode())
