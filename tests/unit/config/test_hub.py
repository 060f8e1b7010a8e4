"""A hub that cannot be reached is said so at once; one that answers is left to the loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.models import check_hub
from isthmus.encoders.model_settings import known_settings
from isthmus.errors import InputError
from isthmus.text.tokenizer import Tokenizer


class NoNetwork(Exception):
    """Whatever the HTTP library of the hub's client raises."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    urls: list[str] = []

    def ask(url: str) -> None:
        urls.append(url)
        raise NoNetwork("name not known")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", ask)
    return urls


@pytest.mark.parametrize("load", [check_hub, Tokenizer.load, known_settings])
def test_it_cannot_be_asked(load: object, asked: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        load("some/model")  # type: ignore[operator]
    assert "name not known" in caught.value.what
    assert "some/model" in caught.value.what
    assert "scratch:SIZE" in caught.value.fix
    (url,) = asked
    assert url.endswith("some/model/resolve/main/config.json")


def test_what_is_here_is_not_asked_for(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check_hub(str(tmp_path))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: "here/config.json")
    check_hub("another/model")
    assert not asked
