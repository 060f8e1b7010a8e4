"""Encoders and index folders that the user of this machine has named.

An index may load such an encoder by itself, and a hybrid may read such an index.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import xxhash

from isthmus.config.cache import cache_folder

_INDEX = "index:"  # no model has such a name


def full_name(model: str) -> str:
    """The name that an index records of a model: of a folder the full path, else `model` itself."""
    return str(Path(model).resolve()) if Path(model).exists() else model


def trust(model: str) -> None:
    """Remembers that the user has named this model, outside of anything that could be received."""
    _remember(full_name(model))


def is_trusted(model: str) -> bool:
    """Whether the user has named this model before."""
    return _mark(model).is_file()


def trust_index(folder: str | Path) -> None:
    """Remembers that the user has built or opened the index in this folder."""
    _remember(_INDEX + str(Path(folder).resolve()))


def is_trusted_index(folder: str | Path) -> bool:
    """Whether the user has built or opened the index in this folder before."""
    return _mark(_INDEX + str(Path(folder).resolve())).is_file()


def _remember(name: str) -> None:
    file = _mark(name)
    with contextlib.suppress(OSError):  # without a cache folder it must be named each time
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name, encoding="utf-8", errors="surrogateescape")


def _mark(name: str) -> Path:
    digest = xxhash.xxh3_128_hexdigest(name.encode("utf-8", "surrogatepass"))
    return cache_folder() / "named" / digest
