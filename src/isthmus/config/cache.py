"""Where isthmus keeps what can be made again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from isthmus.config.output import writing


def cache_folder() -> Path:
    """ISTHMUS_CACHE, or `isthmus` in the user's cache folder."""
    if (stated := os.environ.get("ISTHMUS_CACHE")) is not None:
        return Path(stated)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "isthmus"


def digest(*texts: str) -> str:
    """One name for texts in their order."""
    found = xxhash.xxh3_128()
    for text in texts:
        found.update(f"{len(text)}:{text}".encode())
    return found.hexdigest()


@contextmanager
def one_at_a_time(place: Path) -> Iterator[None]:
    """Lets other processes that would make the same file or folder wait until the block ends.

    Parallel runs that differ in their seed alone need the same files.
    """
    from filelock import FileLock  # takes long to import, and searches need none

    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_name(f".{place.name}.lock")):
            yield
