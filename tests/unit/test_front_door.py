"""`import isthmus` is the public face: twenty names, at no cost."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import isthmus
from isthmus.cli.build import described

HEAVY = ("torch", "numpy", "click", "pydantic", "rich", "transformers")


def test_every_name_is_there_and_dir_lists_it() -> None:
    assert len(set(isthmus.__all__)) == len(isthmus.__all__)
    for name in isthmus.__all__:
        assert getattr(isthmus, name) is not None
        assert name in dir(isthmus)
    with pytest.raises(AttributeError, match="has no attribute 'serach'"):
        isthmus.serach  # noqa: B018


def test_types_are_those_that_are_imported() -> None:
    tree = ast.parse(Path(str(isthmus.__file__)).read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    homes: dict[str, tuple[str, str]] = {}
    for node in checked.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname, "so that type checkers see a public name"
            homes[alias.asname] = (str(node.module), alias.name)
    assert {*homes, "__version__"} == set(isthmus.__all__)
    for name, (home, attribute) in homes.items():
        assert getattr(isthmus, name) is getattr(importlib.import_module(home), attribute)


def test_twenty_names_are_enough() -> None:
    assert len(set(isthmus.__all__) - {"__version__", "research"}) == 20


@pytest.mark.parametrize("name", isthmus.__all__[2:])
def test_help_documents_every_argument(name: str) -> None:
    public = getattr(isthmus, name)
    if not inspect.isfunction(public):
        return
    text = described(public)
    assert set(text.parameters) == set(inspect.signature(public).parameters)
    if inspect.signature(public).return_annotation != "None":
        assert "Returns:" in str(public.__doc__)


def test_importing_it_imports_nothing() -> None:
    program = (
        "import sys; before = set(sys.modules); import isthmus; dir(isthmus)\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = ended.stdout.split()
    ours = [name for name in loaded if name.startswith("isthmus")]
    assert ours == ["isthmus", "isthmus._version"]
    assert not set(HEAVY) & set(loaded)
