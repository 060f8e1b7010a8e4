"""Hits as a person reads them."""

from __future__ import annotations

from rich.console import Console

from isthmus.retrieval.display import hits_table
from isthmus.retrieval.verbs.search import Hit


def shown(found: list[Hit]) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(hits_table("a query", found))
    return capture.get()


def test_hits_are_numbered_from_1() -> None:
    found = [Hit(12.5 - number, f"d{number}", "", f"text {number}") for number in range(10)]
    rows = [line.split() for line in shown(found).splitlines() if "│" in line]
    cells = [[cell for cell in row if cell != "│"] for row in rows]
    assert cells == [
        [str(rank), f"{12.5 - number:.3f}", f"d{number}", "text", str(number)]
        for rank, number in enumerate(range(10), start=1)
    ]


def test_a_terminal_shows_control_characters_and_does_not_obey_them() -> None:
    shown_text = shown([Hit(1.0, "d\x1b]0;t\x07", "\x9b2J", "te\u202ext\r")])
    assert shown_text.replace("\n", "").isprintable()
    for escape in (r"d\x1b]0;t\x07", r"\x9b2J", r"te\u202ext\x0d"):
        assert escape in shown_text


def test_brackets_are_no_markup_and_nothing_found_is_said() -> None:
    assert "[bold]" in shown([Hit(1.0, "d", "[bold]", "text")])
    assert "no results" in shown([])
