"""Hits as a terminal, a notebook and Python's prompt show them."""

from __future__ import annotations

import pickle
from html.parser import HTMLParser

import pytest
from rich.cells import cell_len
from rich.console import Console

from isthmus.retrieval.hits import Hit, Hits

HOSTILE = Hit(1.0, "d\x1b]0;t\x07", "\x9b2J", "te\u202ext\r <script>[bold]&")
ESCAPED = (r"d\x1b]0;t\x07", r"\x9b2J", r"te\u202ext\x0d")


def shown(*found: Hit) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(Hits("a query", found))
    return capture.get()


def in_a_notebook(hits: Hits) -> str:
    """The page that a notebook asks for."""
    return hits._repr_html_()


def in_cells(html: str) -> list[str]:
    """The texts of a page's table cells, and an error where anything but a table is in it."""
    cells: list[str] = []

    class Cells(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            assert tag in ("table", "caption", "thead", "tbody", "tr", "th", "td", "br"), tag
            if tag == "td":
                cells.append("")

        def handle_data(self, data: str) -> None:
            if cells:
                cells[-1] += data

    Cells().feed(html)
    return cells


@pytest.mark.parametrize("show", [shown, lambda *found: repr(Hits("a query", found))])
def test_hits_are_numbered_from_1(show: object) -> None:
    assert callable(show)
    found = [Hit(12.5 - number, f"d{number}", "", f"text {number}") for number in range(10)]
    lines = [line.split() for line in show(*found).splitlines()]
    assert lines == [
        line
        for rank, number in enumerate(range(10), start=1)
        for line in ([str(rank), f"{12.5 - number:.3f}", f"d{number}"], ["text", str(number)])
    ]


def test_ten_hits_fit_on_a_screen_of_80_columns() -> None:
    found = [
        Hit(1.0, f"d{number}", "title " * 20, "系统会询问您 text " * 50) for number in range(10)
    ]
    lines = shown(*found).splitlines()
    assert len(lines) == 20
    assert max(map(cell_len, lines)) <= 80


def test_control_characters_are_shown_and_not_obeyed() -> None:
    hits = Hits("a\x1bquery", [HOSTILE])
    for text in (shown(HOSTILE), repr(hits), in_a_notebook(hits), repr(hits[0])):
        assert text.replace("\n", "").isprintable()
    for text in (shown(HOSTILE), repr(hits), in_a_notebook(hits)):
        for escape in ESCAPED:
            assert escape in text


def test_nothing_in_a_document_is_markup() -> None:
    assert "<script>[bold]&" in shown(HOSTILE)
    hits = Hits("<b>", [HOSTILE])
    assert in_cells(in_a_notebook(hits)) == [
        "1", "1.000", r"\x9b2Jd\x1b]0;t\x07", r"te\u202ext\x0d <script>[bold]&"
    ]  # fmt: skip
    assert "“&lt;b&gt;”" in in_a_notebook(hits)


def test_a_title_that_is_the_id_is_shown_once() -> None:
    assert Hit(1.0, "d", "d", "").name == Hit(1.0, "d", "", "").name == "d"
    assert Hit(1.0, "d", "title", "").name == "title\nd"


def test_nothing_found_is_said() -> None:
    assert "no results" in shown()
    assert "no results" in in_a_notebook(Hits("a query"))


def test_hits_are_a_list() -> None:
    hits = Hits("a query", [HOSTILE])
    assert hits == [HOSTILE]
    assert (pickle.loads(pickle.dumps(hits)), pickle.loads(pickle.dumps(hits)).query) == (
        [HOSTILE], "a query",
    )  # fmt: skip
