"""One recipe or part is shown with all its settings."""

from __future__ import annotations

import pytest
from rich.console import Console

from isthmus.errors import SettingsError
from isthmus.inspection.listing import listing


def shown(what: str) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(listing(what))
    return capture.get()


def test_a_part_with_its_settings() -> None:
    text = shown("neighbours")
    assert "view neighbours: Two neighbouring spans" in text
    assert "near, overlap, random, mixture" in text
    assert "most tokens of a span, special ones included" in text


def test_a_name_of_two_parts_shows_both() -> None:
    text = shown("bag_of_words")
    assert "objective bag_of_words" in text
    assert "probe bag_of_words" in text


def test_a_recipe_as_its_file() -> None:
    assert "decoder_corruption: {name: importance" in shown("cdmae")


def test_a_recipe_with_those_it_builds_on() -> None:
    text = shown("cdmae-retriever")
    assert text.index("electra-base") < text.index("# three-stage, on") < text.index("# dense, on")


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(SettingsError) as caught:
        listing("cdma")
    assert caught.value.allowed.startswith("cdmae")
