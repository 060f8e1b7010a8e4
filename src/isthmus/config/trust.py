"""Encoders that the user of this machine has named: an index may load these by itself."""

from __future__ import annotations

import contextlib
from pathlib import Path

import xxhash

from isthmus.config.cache import cache_folder


def full_name(model: str) -> str:
    """The name that an index records of a model: of a folder the full path, else `model` itself."""
    return str(Path(model).resolve()) if Path(model).exists() else model


def trust(model: str) -> None:
    """Remembers that the user has named this model, outside of anything that could be received."""
    file = _mark(full_name(model))
    with contextlib.suppress(OSError):  # without a cache folder it must be named each time
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(full_name(model), encoding="utf-8", errors="surrogateescape")


def is_trusted(model: str) -> bool:
    """Whether the user has named this model before."""
    return _mark(model).is_file()


def _mark(name: str) -> Path:
    digest = xxhash.xxh3_128_hexdigest(name.encode("utf-8", "surrogatepass"))
    return cache_folder() / "named" / digest
