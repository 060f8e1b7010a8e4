"""Rooms that a newcomer finds a way through: drawn as they are, small, no circles, no doubles."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from tests.architecture.drawing import DRAWN, PAGE, drawing, imports

SOURCE = Path(__file__).resolve().parents[2] / "src" / "isthmus"
FILES = sorted(SOURCE.rglob("*.py"))
KERNELS = [file for file in FILES if "kernels" in file.relative_to(SOURCE).with_suffix("").parts]
LINES, FUNCTION_LINES = 400, 60
# Several rooms may each have one of these: what it is follows from the room.
ROLES = {"__init__", "_base", "builder", "index", "settings", "structure", "task"}


def _name(file: Path) -> str:
    return str(file.relative_to(SOURCE))


def test_the_drawing_is_that_of_the_code() -> None:
    (drawn,) = DRAWN.findall(PAGE.read_text(encoding="utf-8"))
    assert drawn == drawing(), "draw it anew: python -m tests.architecture.drawing"


def test_no_modules_import_each_other() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


def test_files_and_functions_are_short() -> None:
    texts = {_name(file): file.read_text(encoding="utf-8") for file in FILES if file not in KERNELS}
    assert not [name for name, text in texts.items() if text.count("\n") > LINES]
    assert not [
        f"{name}: {node.name}"
        for name, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES
    ]


def test_no_two_rooms_side_by_side_hold_modules_of_one_name() -> None:
    """Files of the command line are named after verbs, and parts of a registry after themselves."""
    rooms = defaultdict(list)
    for file in FILES:
        room = file.parent
        if room.name == "cli" or (room / "_base.py").exists() or file.stem in ROLES:
            continue
        if not _holds_parts(room):
            rooms[room.parent, file.stem].append(room.name)
    assert not {name: found for (_, name), found in rooms.items() if len(found) > 1}


@cache
def _holds_parts(room: Path) -> bool:
    package = ".".join(("isthmus", *room.relative_to(SOURCE).parts))
    return any(f'Registry("{package}"' in text for text in _texts())


@cache
def _texts() -> list[str]:
    return [file.read_text(encoding="utf-8") for file in FILES]
