"""One large JSON array of objects, read object by object."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isthmus.collections.files import open_bytes
from isthmus.collections.problems import Problems
from isthmus.errors import InputError

_CHUNK = 2**20
_BETWEEN = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder()


def json_array(file: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of the first array in a file, with their places; other items are reported.

    A file cut off or broken in the midst of the array is refused: what follows cannot be found.
    """
    number, place, text = 0, 0, ""
    for more in _texts(file):
        text, place = text[place:] + more, 0
        if not number:
            if (begin := text.find("[")) < 0:
                continue
            number, place = 1, begin + 1
        while (place := _after(_BETWEEN, text, place)) < len(text):
            if text[place] == "]":
                return
            where = f"{file}, record {number:,}"
            try:
                record, place = _DECODER.raw_decode(text, place)
            except (ValueError, RecursionError) as error:
                # Cut off where the chunk ends, unless it would be longer than a line may be.
                if isinstance(error, json.JSONDecodeError) and (
                    len(text) - place <= problems.line_limit
                ):
                    break
                raise _broken(file, where) from None
            number += 1
            if isinstance(record, dict):
                yield where, record
            else:
                detail = "a JSON object is expected"
                problems.report("broken line", where, detail, "correct the file")
    raise _broken(file, f"{file}, record {number:,}")


def _texts(file: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with open_bytes(file) as stream:
        while raw := stream.read(_CHUNK):
            try:
                yield decoder.decode(raw)
            except UnicodeDecodeError:
                raise _broken(file, str(file)) from None


def _after(pattern: re.Pattern[str], text: str, place: int) -> int:
    found = pattern.match(text, place)
    return place if found is None else found.end()


def _broken(file: Path, where: str) -> InputError:
    return InputError(
        f"{where}: not a JSON array of objects in UTF-8 up to its end",
        "download it again, or correct it: [{…}, {…}, …], each object no longer than line_limit",
    )
