"""The verb `isthmus export`: an index in, its documents and vectors in a search engine out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash
from pydantic import Field

from isthmus.config import Settings
from isthmus.config.output import claimed, finish, is_complete, reserved
from isthmus.errors import MismatchError, OutputError
from isthmus.indexes.contents import Contents
from isthmus.indexes.engines import ENCODERS, Engine, engines
from isthmus.indexes.manifest import Manifest
from isthmus.progress import notice

INDEXES = "indexes"  # where they lay, among the results


class ExportSettings(Settings):
    """What the engine calls it, and how it searches dense vectors."""

    verb = "export"

    name: str = Field(
        "isthmus",
        pattern=r"^[a-z][a-z0-9_]*$",
        description="of the collection in the engine: lower-case letters, digits, _",
    )
    approximate: bool = Field(
        False, description="dense vectors get a graph: fast, and no longer exact"
    )


def export(
    index: str | Path,
    to: str,
    output: str | Path,
    hybrid: str | Path | None = None,
    settings: ExportSettings | Mapping[str, Any] | None = None,
) -> str:
    """The next step for the user; "" where the engine can be searched already.

    `hybrid` is a second index of the same documents: documents go out with the vectors of both.
    """
    settings = ExportSettings.given(settings)
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
        "settings": settings.model_dump(),
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
