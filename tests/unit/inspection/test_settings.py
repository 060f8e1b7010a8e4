"""Every verb's settings are listed, with what --set takes for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.core import TyperGroup
from typer.main import get_group

from isthmus.cli import app
from isthmus.errors import SettingsError
from isthmus.inspection.settings import VERBS, Setting, settings_class, settings_of


def verbs_with_set(group: TyperGroup, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from verbs_with_set(command, f"{before}{name} ")
        elif any("--set" in parameter.opts for parameter in command.params):
            yield f"{before}{name}"


def one(verb: str, path: str) -> Setting:
    (found,) = [setting for setting in settings_of(verb) if setting.path == path]
    return found


def test_every_verb_that_takes_set_has_a_list() -> None:
    group = get_group(app)
    assert isinstance(group, TyperGroup)
    assert set(verbs_with_set(group)) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_a_wrong_key_names_the_list(verb: str) -> None:
    settings = settings_class(verb)
    assert {setting.path for setting in settings_of(verb)} >= set(settings.model_fields)
    shared = {"negatives": "finetune", "explain": "search"}
    assert settings.verb == shared.get(verb, verb)
    with pytest.raises(SettingsError) as caught:
        settings.parse({**_required(verb), "depht": 3}, where="test")
    assert "unknown key 'depht'" in caught.value.what
    assert caught.value.fix.endswith(f"all of them: isthmus list settings {settings.verb}")


def _required(verb: str) -> dict[str, object]:
    """Something for all that must be given, so that the wrong key is the first mistake."""
    given = {
        "objectives": {"masked_lm": 1.0},
        "packages": [],
        "limit_per_package": 1,
        "splits": {},
        "dense": {},
        "base": {"model": "some"},
        "collections": {"some": {"spec": "some"}},
        "starts": {"some": {}},
        "kinds": {"some": {"recipe": "some"}},
        "tasks": {"some": {"collection": "some"}},
    }
    return {
        setting.path: given.get(setting.path, "some")
        for setting in settings_of(verb)
        if setting.default == "required" and "." not in setting.path
    }


@pytest.mark.parametrize("verb", VERBS)
def test_every_setting_says_what_it_means(verb: str) -> None:
    assert [one.path for one in settings_of(verb) if not one.meaning] == []


def test_defaults_as_one_would_write_them() -> None:
    assert one("search", "depth").default == "null"
    assert one("pretrain", "titles").default == "true"
    assert one("finetune", "encoder").default == "dense"
    assert one("pretrain", "corpus").default == "required"
    assert one("index", "hnsw").default == "false"
    assert one("index", "hnsw.neighbours").default == "32"
    assert one("evaluate", "measures").default.startswith('["RR@10", ')


def test_defaults_of_a_nested_model_are_those_of_the_verb() -> None:
    assert "Success@100" in one("evaluate", "measures").default
    assert "Success@100" not in one("adapt", "evaluation.measures").default


def test_values_with_their_bounds() -> None:
    assert one("pretrain", "max_length").values == "int (≥ 8)"
    assert one("pretrain", "training.warmup_ratio").values == "float (≥ 0, < 1)"
    assert one("pretrain", "training.dataloader_num_workers").values == "int (≥ 0) or auto"
    assert one("finetune", "similarity").values == "dot, cosine"
    assert one("finetune", "development").values == "mapping or null"


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
