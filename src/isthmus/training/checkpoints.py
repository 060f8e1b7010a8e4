"""Checkpoint folders: sealed last, with a checksum of every file, and verified before reading.

transformers reads what is pickled in them (optimiser, schedule, randomness) as tensors and numbers
alone (`weights_only`), so that a checkpoint from elsewhere runs no code.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from isthmus.config.output import write_json
from isthmus.config.safe_names import inside
from isthmus.config.sealed_json import UnreadableError, read_mapping, sealed
from isthmus.errors import InputError, IsthmusError
from isthmus.progress import notice

_COMPLETE = "complete.json"
_NAME = re.compile(r"checkpoint-([0-9]{1,15})")
_FILES = "files"


def seal(folder: Path, kept: Mapping[str, Any]) -> None:
    """Marks a checkpoint as whole, with the trainer's state and a checksum of every file."""
    files = {
        file.relative_to(folder).as_posix(): _checksum(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != folder / _COMPLETE
    }
    write_json(folder / _COMPLETE, sealed({**kept, _FILES: files}))


def kept(folder: Path) -> dict[str, Any]:
    """The trainer's state in a sealed checkpoint."""
    found = read_mapping(folder / _COMPLETE)
    if not isinstance(found.get(_FILES), dict):
        raise UnreadableError(f"{_FILES} is not a mapping")
    return found


def last_checkpoint(output: Path) -> Path | None:
    """The newest whole checkpoint; later ones, torn or damaged, are removed.

    Raises an InputError, and removes none, where all complete ones are damaged.
    """
    damaged: dict[Path, str] = {}
    for folder in reversed(_checkpoints(output)):
        if not (folder / _COMPLETE).is_file():
            shutil.rmtree(folder, ignore_errors=True)
        elif (damage := _damage(folder)) is None:
            for later, why in damaged.items():
                notice(f"{later} is damaged ({why}) and removed: {folder.name} is whole")
                shutil.rmtree(later, ignore_errors=True)
            return folder
        else:
            damaged[folder] = damage
    if damaged:
        folder, why = next(iter(damaged.items()))
        raise _unreadable(folder, why)
    return None


def rotate(output: Path, limit: int | None) -> None:
    """Removes all but the newest checkpoints; one at least stays, whatever it was written for."""
    if limit:
        for folder in _checkpoints(output)[:-limit]:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def restoring(folder: Path) -> Iterator[None]:
    """Turns any error while a folder of a run is restored into an InputError."""
    try:
        yield
    except IsthmusError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise _unreadable(folder, f"{reason} ({type(error).__name__})") from error


def _unreadable(folder: Path, why: str) -> InputError:
    return InputError(
        f"{str(folder)!r} is damaged: {why}",
        "copy it again, or remove it and run the same command: it resumes from an earlier "
        "checkpoint, if there is one",
    )


def _damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        for name, checksum in kept(folder)[_FILES].items():
            if not (folder / inside(name)).is_file():
                return f"{name} is missing"
            if _checksum(folder / name) != checksum:
                return f"{name} has another checksum"
    except (OSError, UnreadableError, ValueError) as error:
        return f"{_COMPLETE}: {error}"
    return None


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, xxhash.xxh3_128).hexdigest()


def _checkpoints(output: Path) -> list[Path]:
    found = [folder for folder in output.glob("checkpoint-*") if _NAME.fullmatch(folder.name)]
    return sorted(found, key=lambda folder: int(folder.name.partition("-")[2]))
