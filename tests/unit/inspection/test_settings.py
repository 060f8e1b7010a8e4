"""Every verb's settings are listed, with what --set takes for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.core import TyperGroup
from typer.main import get_group

from isthmus.cli import app
from isthmus.errors import SettingsError
from isthmus.inspection.settings import VERBS, settings_of


def verbs_with_set(group: TyperGroup, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from verbs_with_set(command, f"{before}{name} ")
        elif any("--set" in parameter.opts for parameter in command.params):
            yield f"{before}{name}"


def test_every_verb_that_takes_set_has_a_list() -> None:
    group = get_group(app)
    assert isinstance(group, TyperGroup)
    assert set(verbs_with_set(group)) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_setting_says_what_it_means(verb: str) -> None:
    assert [one.path for one in settings_of(verb) if not one.meaning] == []


def test_what_is_under_a_path_and_nothing_else() -> None:
    assert {s.path.split(".")[0] for s in settings_of("search", "rerank")} == {"rerank"}
    assert [s.path for s in settings_of("finetune", "sparse.form")] == ["sparse.form"]


def test_what_there_is_not() -> None:
    with pytest.raises(SettingsError, match="'serch'") as caught:
        settings_of("serch")
    assert caught.value.expected.startswith("search")
    with pytest.raises(SettingsError, match="'dept'") as caught:
        settings_of("search", "dept")
    assert caught.value.expected.startswith("depth")
