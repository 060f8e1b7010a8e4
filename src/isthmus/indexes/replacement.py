"""What may be overwritten: a folder of indexes that isthmus made, whole or damaged, and no other.

And what a killed command leaves beside such a folder, which the next one removes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from isthmus.config.output import SNAPSHOT, read_snapshot, reserved, where_it_leads
from isthmus.config.sealed_json import UnreadableError, read_mapping
from isthmus.errors import InputError, OutputError
from isthmus.indexes.dense.hnsw import HNSW
from isthmus.indexes.manifest import (
    HYBRID,
    MANIFEST,
    SEGMENTS,
    STATE,
    is_searched,
    stated_manifest,
    workplace,
)

_FILES = (MANIFEST, SNAPSHOT, HYBRID, "job.json")
_WRITTEN_BY = ("index", "update")
# Of writers, and of systems that leave files in every folder.
_HIDDEN = re.compile(r"\.lock|\..+\.(?:lock|partial|building|new|old)|\.DS_Store|\.nfs\w+")


def check_replaceable(folder: Path) -> None:
    """Refuses to replace a folder that holds anything but indexes, whole or damaged."""
    if not is_ours(folder):
        raise not_an_index(folder)
    foreign = sorted(str(one.relative_to(folder)) for one in _foreign(folder))
    if foreign:
        raise OutputError(
            f"--overwrite: {str(folder)!r} holds more than an index: {', '.join(foreign[:5])}",
            "move what is not of the index, or choose another --output",
        )


def is_ours(folder: Path) -> bool:
    """Whether `isthmus index` wrote what is in a folder, even if it is damaged since."""
    with suppress(InputError):
        return bool(stated_manifest(folder))
    with suppress(UnreadableError):
        return read_mapping(folder / HYBRID).get("state") is not None
    with suppress(InputError):
        return read_snapshot(folder)["verb"] in _WRITTEN_BY
    return (folder / SNAPSHOT).is_file()  # which names no verb any more: what is beside it decides


def _foreign(folder: Path, of_indexes: bool = False) -> Iterator[Path]:
    """What is in an index, or in a folder `of_indexes`, and does not belong there."""
    for entry in folder.iterdir():
        if _HIDDEN.fullmatch(entry.name):
            continue
        if not entry.is_dir() or entry.is_symlink():
            if entry.name not in _FILES and not is_searched(entry):
                yield entry
        elif of_indexes:
            yield from _foreign(entry)
        elif entry.name == SEGMENTS or re.fullmatch(STATE, entry.name):
            yield from _foreign(entry, of_indexes=True)
        elif entry.name != HNSW:
            yield entry


def not_an_index(folder: Path) -> OutputError:
    """The refusal to write into a folder that holds something else."""
    if is_ours(folder):
        what = "indexes of several retrievers" if (folder / HYBRID).exists() else "a damaged index"
        fix = "choose another --output, or replace what is there: --overwrite"
    else:
        what = "something that is not an index"
        fix = "choose another --output, or move what is there"
    return OutputError(
        f"--output {str(folder)!r} already holds {what}",
        fix,
    )


def replacement(folder: Path) -> Path:
    """Where an index is built that will replace the one in a folder: hidden, beside it."""
    place = where_it_leads(folder)
    return place.with_name(f".{place.name}.new")


def remove_leftovers(folder: Path) -> None:
    """Removes what killed commands left beside a folder whose index is whole."""
    place = where_it_leads(folder)
    new = replacement(folder)
    for left in ("hybrid", "old"):
        shutil.rmtree(place.with_name(f".{place.name}.{left}"), ignore_errors=True)
    for made in (workplace(folder), workplace(new), new):
        shutil.rmtree(made, ignore_errors=True)
    with suppress(OutputError), reserved(new):
        pass  # whose lock file goes when it is given up
