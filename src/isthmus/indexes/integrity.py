"""Whether files are what was written: every byte is read and compared, once, and that remembered.

Checksums are not compared again while size, time of change and place on the disk of all files stay
what they were. What is remembered lies in the cache folder, and can be deleted at any time.
"""

from __future__ import annotations

import os
import shlex
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import xxhash
from pydantic import Field

from isthmus.config import Settings
from isthmus.config.cache import cache_folder
from isthmus.errors import InputError, IsthmusError
from isthmus.progress import Bar

Count = Annotated[int, Field(ge=0, lt=2**53)]
"""How many of something: more than any index has is no number to compute with."""
COPY = "copy the whole folder again, or build it again: isthmus index … --overwrite"
_PIECE = 2**20
_LONG = 2**30  # bytes whose reading is shown by a bar
_TICK = 10**8  # nanoseconds in which a second change of a file may leave its time what it was
_REMEMBERED = 2**12  # sets of files
_KNOWN: dict[str, str] = {}  # to this process


class StoredFile(Settings):
    """Size and xxh3 checksum of one file."""

    bytes: Count
    xxh3: str


def described(folder: Path, names: Iterable[str], shape: str = "") -> dict[str, StoredFile]:
    """Sizes and checksums of these files, after every byte of them was read.

    `shape` is what else it says of them; see `check`.
    """
    found, key = read_files(folder, names)
    if key is not None:
        _remember(key, shape)
    return found


def read_files(folder: Path, names: Iterable[str]) -> tuple[dict[str, StoredFile], str | None]:
    """Sizes and checksums, and a key to remember them by; None if a file changed just now."""
    before = {name: (folder / name).stat() for name in names}
    total = sum(one.st_size for one in before.values())
    with _shown(folder, total) as bar:
        found = {
            name: StoredFile(bytes=one.st_size, xxh3=_checksum(folder / name, bar))
            for name, one in before.items()
        }
    key = _identity(found, before)
    now = time.time_ns()
    settled = all(abs(now - one.st_mtime_ns) > _TICK for one in before.values())
    after = {name: (folder / name).stat() for name in found}
    return found, key if settled and key == _identity(found, after) else None


def check(
    folder: Path,
    files: Mapping[str, StoredFile],
    index: Path | None = None,
    fix: str = COPY,
    examine: Callable[[], None] | None = None,
    shape: str = "",
) -> None:
    """Refuses files that are not what was written; `index` is the folder that the user knows.

    `examine` compares what is in them with `shape`, before both are remembered: another manifest of
    the same files is examined anew. With ISTHMUS_VERIFY=sizes nothing but sizes is compared.
    """
    index = index or folder
    stats = {}
    for name, stored in files.items():
        try:
            stats[name] = os.stat(f"{folder}/{name}")  # noqa: PTH116 - a Path takes twice the time
        except (OSError, ValueError):
            raise damaged(folder / name, "it is missing", index, fix) from None
        if not stat.S_ISREG(stats[name].st_mode):
            raise damaged(folder / name, "it is not a file", index, fix)
        if (size := stats[name].st_size) != stored.bytes:
            what = f"it has {size:,} bytes, not {stored.bytes:,}"
            raise damaged(folder / name, what, index, fix)
    if os.environ.get("ISTHMUS_VERIFY") == "sizes" or _is_known(_identity(files, stats), shape):
        return
    with parsing(folder, index):
        found, key = read_files(folder, files)
    for name, stored in files.items():
        if found[name] != stored:
            raise damaged(folder / name, changed(stored, found[name]), index, fix)
    if examine is not None:
        with parsing(folder, index):
            examine()
    if key is not None:
        _remember(key, shape)


def changed(stored: StoredFile, found: StoredFile) -> str:
    """How a file differs from the one that was stored."""
    if stored.bytes != found.bytes:
        return f"it has {found.bytes:,} bytes, not {stored.bytes:,}"
    return f"it was changed: checksum {found.xxh3}, not {stored.xxh3}"


def forget(folder: Path, files: Mapping[str, StoredFile]) -> None:
    """Forgets that these files were verified: they are read again when opened next."""
    with suppress(OSError):
        key = _identity(files, {name: (folder / name).stat() for name in files})
        _KNOWN.pop(key, None)
        _marker(key).unlink(missing_ok=True)


def damaged(file: Path, why: str, index: Path, fix: str = COPY) -> InputError:
    """The refusal of a file that is not as it was written."""
    return InputError(
        f"{str(file)!r} is damaged: {why}",
        f"`isthmus doctor {shlex.quote(str(index))}` says more; {fix}",
    )


@contextmanager
def parsing(file: Path, index: Path) -> Iterator[None]:
    """Turns a library's error about an unreadable file into the refusal of a damaged one."""
    try:
        yield
    except (IsthmusError, MemoryError):
        raise
    except Exception as error:
        why = f"it cannot be read: {error or type(error).__name__}"
        raise damaged(file, why, index) from error


def _checksum(file: Path, bar: Bar | None) -> str:
    digest, piece = xxhash.xxh3_128(), memoryview(bytearray(_PIECE))
    with file.open("rb", buffering=0) as stream:
        while size := stream.readinto(piece):
            digest.update(piece[:size])
            if bar is not None:
                bar.advance(size)
    return digest.hexdigest()


@contextmanager
def _shown(folder: Path, total: int) -> Iterator[Bar | None]:
    if total < _LONG:
        yield None
        return
    with Bar(f"verifying {folder}", total, "bytes") as bar:
        yield bar


def _identity(files: Mapping[str, StoredFile], stats: Mapping[str, os.stat_result]) -> str:
    """One name for files and what is known of them; another as soon as one of them is touched."""
    parts = [
        (name, files[name].xxh3, one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns)
        for name, one in sorted(stats.items())
    ]
    return xxhash.xxh3_128(repr(parts).encode()).hexdigest()


def _is_known(key: str, shape: str) -> bool:
    if _KNOWN.get(key) != shape:
        with suppress(OSError, UnicodeDecodeError):
            _KNOWN[key] = _marker(key).read_text(encoding="utf-8")
    return _KNOWN.get(key) == shape


def _remember(key: str, shape: str) -> None:
    _KNOWN[key] = shape
    with suppress(OSError):  # without a cache folder it is verified again
        marker = _marker(key)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text(shape, encoding="utf-8")
        if len(others := list(marker.parent.iterdir())) > _REMEMBERED:
            for other in others:
                other.unlink(missing_ok=True)


def _marker(key: str) -> Path:
    return cache_folder() / "verified" / key
