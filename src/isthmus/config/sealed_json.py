"""JSON files that vouch for themselves: `checksum` is that of everything else in them."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

_CHECKSUM = "checksum"
_LARGEST = 2**28  # bytes; what isthmus writes is far from it


class UnreadableError(Exception):
    """Why a file is not what was written; callers add which file it is and what to do."""


def read_mapping(file: Path) -> dict[str, Any]:
    """The mapping in a JSON file, without its checksum; see `parse_mapping`."""
    return parse_mapping(read_bounded(file))


def read_bounded(file: Path, largest: int = _LARGEST) -> bytes:
    """The bytes of a file; UnreadableError if it cannot be read or has more than `largest`."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableError("it is not a file")
        if found.st_size > largest:
            raise UnreadableError(f"{found.st_size:,} bytes are too many")
        return file.read_bytes()
    except (OSError, MemoryError) as error:
        raise UnreadableError(str(error) or type(error).__name__) from None


def parse_json(text: bytes) -> Any:
    """The value that a JSON text spells; UnreadableError for any text that spells none."""
    try:
        return json.loads(text)
    except RecursionError:
        raise UnreadableError("it is nested too deeply") from None
    except (ValueError, MemoryError) as error:
        raise UnreadableError(str(error) or type(error).__name__) from None


def parse_mapping(text: bytes) -> dict[str, Any]:
    """The mapping that a JSON text spells, without its checksum, which must hold if it has one."""
    values = parse_json(text)
    if not isinstance(values, dict):
        raise UnreadableError("it is not a mapping")
    stated = values.pop(_CHECKSUM, None)
    if stated is not None and stated != _checksum(values):
        raise UnreadableError("its checksum does not hold")
    return values


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with its checksum, instead of any that it had."""
    rest = {key: value for key, value in values.items() if key != _CHECKSUM}
    return {**rest, _CHECKSUM: _checksum(rest)}


def _checksum(values: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise UnreadableError("it is nested too deeply") from None
    return xxhash.xxh3_128(text.encode()).hexdigest()
