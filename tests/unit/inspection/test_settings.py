"""Every verb's settings are listed, with what --set takes for them."""

from __future__ import annotations

import pytest

from isthmus.errors import SettingsError
from isthmus.inspection.settings import VERBS, settings_of


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
    with pytest.raises(SettingsError, match="'candidate'") as caught:
        settings_of("search", "candidate")
    assert caught.value.expected.startswith("candidates")
