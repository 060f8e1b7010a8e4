"""Lines of columns separated by tabs, the first of which is an id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isthmus.collections.files import lines
from isthmus.collections.problems import Problems


def tab_lines(
    file: Path, problems: Problems, widths: tuple[int, ...]
) -> Iterator[tuple[str, list[str]]]:
    """The columns of each line with its place; lines of another width are reported."""
    expected = " or ".join(map(str, widths))
    for number, line in lines(file, problems):
        columns = line.split("\t")
        where = f"{file}:{number}"
        if len(columns) not in widths:
            detail = f"{len(columns)} columns separated by tabs where {expected} are expected"
            problems.report("broken line", where, detail, "correct the line")
        elif not columns[0].strip():
            problems.report("broken line", where, "the id is empty", "give every line an id")
        else:
            columns[0] = columns[0].strip()
            yield where, columns
