"""The files of the page, read once: what is not among them is not there."""

from __future__ import annotations

from importlib.resources import files
from mimetypes import guess_type

from isthmus.evaluation.pages import look


def page_files() -> dict[str, tuple[bytes, str]]:
    """Contents and types by name; look.css is the stylesheet that reports have too."""
    found = {"look.css": (look().encode(), "text/css")}
    for file in files("isthmus.serving").joinpath("page").iterdir():
        kind, _ = guess_type(file.name)
        if kind is not None and file.is_file():
            found[file.name] = file.read_bytes(), kind
    return found
