"""One recipe or part is shown with all its settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from isthmus.cli import app
from isthmus.config import Recipe, find_recipe, shipped_recipes
from isthmus.errors import InputError, SettingsError
from isthmus.finetuning.losses._base import LOSSES
from isthmus.finetuning.regularizers._base import REGULARIZERS
from isthmus.inspection.catalogue import listing


def shown(*words: str, width: int = 160, terminal: bool = True) -> str:
    console = Console(width=width, force_terminal=terminal, color_system=None)
    with console.capture() as capture:
        console.print(listing(*words), soft_wrap=True)
    return capture.get()


def test_a_part_with_its_settings() -> None:
    text = shown("neighbours")
    assert "view neighbours: Two neighbouring spans" in text
    assert "near, overlap, random, mixture" in text
    assert "most tokens of a span, special ones included" in text


def rows(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_losses_and_regularizers_with_theirs() -> None:
    for loss in LOSSES.names():
        assert any(
            row.startswith("weight 1.0 float (≥ 0): 0: computed") for row in rows(shown(loss))
        )
    for regularizer in REGULARIZERS.names():
        told = rows(shown(regularizer))
        assert "queries 0.0 float (≥ 0): weight on the queries' vectors" in told
        assert any(row.startswith("target.documents null float or null (≥ 1)") for row in told)


def test_a_name_of_two_parts_shows_both() -> None:
    text = shown("bag_of_words")
    assert "objective bag_of_words" in text
    assert "probe bag_of_words" in text


def test_a_recipe_as_its_file() -> None:
    assert "decoder_corruption: {name: importance" in shown("cdmae")


@pytest.mark.parametrize("name", [recipe.name for recipe in shipped_recipes()])
def test_a_printed_recipe_is_a_recipe(name: str, tmp_path: Path) -> None:
    """As `isthmus list NAME > mine.yaml` makes it, on whatever terminal."""
    printed = CliRunner().invoke(app, ["list", name], env={"COLUMNS": "40"}).stdout
    file = tmp_path / "mine.yaml"
    file.write_text(printed, encoding="utf-8")
    mine = Recipe(file)
    shipped = find_recipe(name, mine.verb)
    assert printed.startswith(shipped.file.read_text(encoding="utf-8"))
    assert yaml.safe_load(printed) == yaml.safe_load(shipped.file.read_text(encoding="utf-8"))
    assert mine.settings == shipped.settings


def test_a_recipe_is_not_wrapped_on_a_terminal_either() -> None:
    console = Console(width=40, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(listing("bow"), soft_wrap=True)
    shipped = find_recipe("bow", "pretrain")
    assert capture.get() == shipped.file.read_text(encoding="utf-8")


def test_a_part_that_shares_its_name_with_a_recipe() -> None:
    assert "# The decoder of this name: isthmus list parts condenser" in shown("condenser")
    assert shown("parts", "condenser").startswith("decoder condenser: ")


def test_recipes_by_verb_with_whole_names() -> None:
    """At any width, and a name before those it begins."""
    for width in (48, 80, 160):
        text = shown("recipes", width=width)
        named: dict[str, list[str]] = {}
        for line in text.splitlines():
            first, *rest = line.split() if line[:1].isalpha() else [""]
            if rest[:1] == ["--recipe"]:
                names = named[first] = []
            elif first:
                names.append(first)
        assert named == {
            verb: sorted(recipe.name for recipe in shipped_recipes(verb))
            for verb in ("adapt", "pretrain", "finetune", "quickstart")
        }


@pytest.mark.parametrize("width", [48, 80, 160])
def test_a_recipe_names_its_source_at_every_width(width: int) -> None:
    found: dict[str, str] = {}
    name = ""
    for line in shown("recipes", width=width).splitlines():
        name = line.split(maxsplit=1)[0] if line[:1].isalpha() else name
        found[name] = f"{found.get(name, '')} {line.removeprefix(name).strip()}"
    for recipe in shipped_recipes():
        if width == 160:  # in full, in a column of several lines
            assert set(recipe.paper.split()) <= set(found[recipe.name].split())
        elif recipe.paper:
            told = "".join(found[recipe.name].split())  # a long word may be folded
            assert told.endswith(f"[{recipe.source}]".replace(" ", ""))


def test_sources_are_short_and_dated() -> None:
    for recipe in shipped_recipes():
        assert len(recipe.source) <= 42
        if recipe.verb == "pretrain":
            assert re.search(r"[A-Z]\w+ 20\d\d", recipe.source), recipe.name


@pytest.mark.parametrize("width", [40, 80, 160])
def test_in_a_pipe_a_row_is_a_line(width: int) -> None:
    lines = shown("recipes", width=width, terminal=False).splitlines()
    expected = [
        [verb, recipe.name, recipe.summary, recipe.paper]
        for verb in ("adapt", "pretrain", "finetune", "quickstart")
        for recipe in shipped_recipes(verb)
    ]
    assert [" ".join(line.split()) for line in lines] == [
        " ".join(filter(None, row)) for row in expected
    ]
    assert all(line == line.rstrip() for line in lines)
    parts = shown("parts", width=width, terminal=False).splitlines()
    assert "view neighbours Two neighbouring spans" in " ".join("\n".join(parts).split())
    assert all(len(line.split()) > 4 for line in parts)


def test_the_command_in_a_pipe() -> None:
    printed = CliRunner().invoke(app, ["list", "recipes"], env={"COLUMNS": "80"}).stdout
    (line,) = (line for line in printed.splitlines() if line.split()[1] == "cdmae")
    assert "(by PMI)" in line
    assert "arXiv 2023: Challenging Decoder helps" in line


def test_settings_of_a_verb_wide_and_narrow() -> None:
    told = rows(shown("settings", "pretrain"))
    assert "training.learning_rate 5e-05 float (> 0): peak learning rate" in told
    lines = [line.rstrip() for line in shown("settings", "pretrain", width=80).splitlines()]
    place = lines.index("training.learning_rate = 5e-05")
    assert lines[place + 1] == "    float (> 0): peak learning rate"


@pytest.mark.parametrize("under", ["training", "training."])
def test_settings_under_a_path(under: str) -> None:
    text = shown("settings", "finetune", under)
    assert "training.seed" in text
    assert "development" not in text.partition("Recipes set")[0]


def test_settings_of_a_verb_of_two_words() -> None:
    assert "smallest_effect" in shown("settings", "benchmark", "report")
    assert "smallest_effect" not in shown("settings", "benchmark", "report", "power")


def test_a_recipe_with_those_it_builds_on() -> None:
    text = shown("cdmae-retriever")
    assert text.index("electra-base") < text.index("# three-stage, on") < text.index("# dense, on")


def test_a_users_own_recipe_with_those_it_builds_on(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("verb: finetune\nbase: three-stage\nsettings: {seed: 1}\n")
    text = shown(str(tmp_path / "mine.yaml"))
    assert text.index("seed: 1") < text.index("# three-stage, on") < text.index("# dense, on")
    with pytest.raises(InputError, match="there is no recipe file"):
        listing(str(tmp_path / "yours.yaml"))


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(SettingsError) as caught:
        listing("cdma")
    assert caught.value.expected.startswith("cdmae")
    with pytest.raises(SettingsError) as caught:
        listing("parts", "neighbors")
    assert caught.value.expected.startswith("neighbours")
