"""Names that stored files hold of other files: plain ones, which cannot lead out of their folder.

A manifest may come from anywhere, and what it names is opened, replaced and deleted.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

_LONGEST = 255  # bytes, on the file systems in use


def plain(name: str) -> str:
    """The name itself; a ValueError for one that is not that of a file inside a folder."""
    if not name or name in (".", "..") or any(sign in name for sign in "/\\:\0"):
        raise ValueError("not a plain file name: no folders, no drives, no '..'")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _LONGEST:
        raise ValueError(f"not a plain file name: not of 1 to {_LONGEST} bytes in UTF-8")
    return name


PlainName = Annotated[str, AfterValidator(plain)]
"""The name of a file or folder directly inside the folder that it is told of."""
