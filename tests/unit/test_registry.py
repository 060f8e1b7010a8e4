"""File name = public name, nothing imported before it is asked for."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from isthmus import registry as registry_module
from isthmus.errors import SettingsError
from isthmus.registry import Registry


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    package = tmp_path / "drawing_shapes"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_hidden.py").write_text("")
    (package / "round_circle.py").write_text(
        '"""Round.\n\nVery round."""\nclass RoundCircle:\n    pass\n'
    )
    (package / "square.py").write_text("def square():\n    return 4\n")
    (package / "broken.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    return Registry("drawing_shapes", "shape")


def test_names_are_the_files(shapes: Registry) -> None:
    assert shapes.names() == ["broken", "round_circle", "square"]


def test_a_class_or_a_function_of_the_files_name(shapes: Registry) -> None:
    assert shapes.load("round_circle").__name__ == "RoundCircle"
    assert shapes.load("square")() == 4


def test_nothing_is_imported_to_list_check_or_summarise(shapes: Registry) -> None:
    shapes.check("broken", "here")
    assert shapes.summary("broken") == ""
    assert shapes.summary("round_circle") == "Round."
    with pytest.raises(RuntimeError, match="imported"):
        shapes.load("broken")


def test_a_misspelt_name(shapes: Registry) -> None:
    with pytest.raises(SettingsError) as caught:
        shapes.load("rond_circle", "shapes.first")
    error = caught.value
    assert "there is no shape named 'rond_circle'" in error.what
    assert "shapes.first" in error.what
    assert error.expected == "round_circle, broken, square"
    assert "entry-point group 'drawing_shapes'" in error.fix


def test_other_distributions_add_variants(
    shapes: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("star", "collections:OrderedDict", "drawing_shapes")
    monkeypatch.setattr(registry_module, "announced", lambda: EntryPoints([point]))
    assert "star" in shapes.names()
    assert shapes.load("star").__name__ == "OrderedDict"
    assert shapes.summary("star") == "from collections:OrderedDict"
