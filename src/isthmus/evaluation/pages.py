"""Reports as one HTML file: the frame around their parts, and the look that all pages share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files

from isthmus.errors import visible


def page(title: str, parts: Iterable[str]) -> str:
    """The parts, which are HTML already, as a page without scripts and external files."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(visible(title))}</title>"
        f"<style>{look()}{_stylesheet('reports.css')}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def look() -> str:
    """The stylesheet of reports and of the search page: colours, type, tables, bars, print."""
    return _stylesheet("look.css")


@cache
def _stylesheet(name: str) -> str:
    return files("isthmus.evaluation").joinpath(name).read_text(encoding="utf-8")
