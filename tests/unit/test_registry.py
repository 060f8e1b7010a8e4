"""A decorator's name = public name; nothing imported before it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from isthmus import registry as registry_module
from isthmus.errors import SettingsError
from isthmus.registry import Registry

ROUND = '''
from drawing import SHAPES
shape = SHAPES.register


@shape("round_circle")
class Circle:
    """Round.

    Very round.
    """


@shape("square")
def corners():
    return 4


def unnamed():
    """Has no decorator."""
'''
BROKEN = """
raise RuntimeError("imported")


@shape("broken")
class Broken: ...
"""
REGISTRY = """
from isthmus.registry import Registry
SHAPES = Registry("{}", "shape")
"""


@pytest.fixture
def drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Registry]:
    """The registry whose parts are in this module or package."""
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "drawing_shapes"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "round.py").write_text(ROUND)
    (package / "broken.py").write_text(BROKEN)
    (tmp_path / "drawing_round.py").write_text(ROUND)

    def registry(place: str) -> Registry:
        for name in [name for name in sys.modules if name.startswith("drawing")]:
            del sys.modules[name]
        (tmp_path / "drawing.py").write_text(REGISTRY.format(place))
        import drawing  # type: ignore[import-not-found]

        return drawing.SHAPES  # type: ignore[no-any-return]

    return registry


def test_names_are_given_by_decorators(drawing: Callable[[str], Registry]) -> None:
    assert drawing("drawing_round").names() == ["round_circle", "square"]
    assert drawing("drawing_shapes").names() == ["broken", "round_circle", "square"]


def test_a_class_or_a_function(drawing: Callable[[str], Registry]) -> None:
    for place in ("drawing_round", "drawing_shapes"):
        shapes = drawing(place)
        assert shapes.load("round_circle").__name__ == "Circle"
        assert shapes.load("square")() == 4


def test_nothing_is_imported_to_list_check_or_summarise(
    drawing: Callable[[str], Registry],
) -> None:
    shapes = drawing("drawing_shapes")
    shapes.check("broken", "here")
    assert shapes.summary("broken") == ""
    assert shapes.summary("round_circle") == "Round."
    assert "drawing_shapes.round" not in sys.modules
    with pytest.raises(RuntimeError, match="imported"):
        shapes.load("broken")


def test_a_misspelt_name(drawing: Callable[[str], Registry]) -> None:
    with pytest.raises(SettingsError) as caught:
        drawing("drawing_shapes").load("rond_circle", "shapes.first")
    error = caught.value
    assert "there is no shape named 'rond_circle'" in error.what
    assert "shapes.first" in error.what
    assert error.expected == "round_circle, broken, square"
    assert "entry-point group 'drawing_shapes'" in error.fix


def test_other_distributions_add_parts(
    drawing: Callable[[str], Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("star", "collections:OrderedDict", "drawing_shapes")
    monkeypatch.setattr(registry_module, "announced", lambda: EntryPoints([point]))
    shapes = drawing("drawing_shapes")
    assert "star" in shapes.names()
    assert shapes.load("star").__name__ == "OrderedDict"
    assert shapes.summary("star") == "from collections:OrderedDict"


def test_a_part_of_a_notebook(drawing: Callable[[str], Registry]) -> None:
    """What a decorator names outside the registry's module is known from then on."""
    shapes = drawing("drawing_shapes")

    @shapes.register("star")
    class Star:
        """Five corners."""

    assert shapes.load("star") is Star
    assert shapes.summary("star") == "Five corners."
    assert "star" in shapes.names()
