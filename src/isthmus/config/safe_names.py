"""Names and paths that stored files hold of other files, which cannot lead out of their folder.

A manifest may come from anywhere, and what it names is opened, replaced and deleted.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator

_LONGEST = 255  # bytes, on the file systems in use


def plain(name: str) -> str:
    """The name itself; a ValueError unless it names a file or folder directly inside a folder."""
    if not name or name in (".", "..") or any(sign in name for sign in "/\\:\0"):
        raise ValueError("not a plain file name: no folders, no drives, no '..'")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _LONGEST:
        raise ValueError(f"not a plain file name: not of 1 to {_LONGEST} bytes in UTF-8")
    return name


def inside(path: object) -> str:
    """The path itself; a ValueError unless it is a relative path without steps upwards."""
    good = isinstance(path, str) and "\0" not in path and "\\" not in path
    if not good or (steps := PurePosixPath(str(path))).is_absolute() or ".." in steps.parts:
        raise ValueError(f"{path!r:.200} is not a relative path inside the folder")
    if any(len(step.encode()) > _LONGEST for step in steps.parts):
        raise ValueError(f"{path!r:.200} is longer than names of files are")
    return str(path)


PlainName = Annotated[str, AfterValidator(plain)]
"""The name of a file or folder directly inside the folder of the file that states it."""
