"""Reports as pages: whole in themselves, and with the look of the search page."""

from __future__ import annotations

import re
from pathlib import Path

import isthmus
from isthmus.evaluation.pages import look, page

SOURCE = Path(isthmus.__file__).parent
SHEETS = (SOURCE / "evaluation" / "reports.css", SOURCE / "serving" / "page" / "page.css")


def test_a_page_holds_its_look_and_asks_for_nothing() -> None:
    text = page("a <b> title", ["<h1>one</h1>", "<p>two</p>"])
    assert "<title>a &lt;b&gt; title</title>" in text
    assert look() in text
    assert "@media print" in text
    assert not re.search(r"https?:|<script|<link|url\(|@import", text)


def test_colours_are_defined_once() -> None:
    for sheet in SHEETS:
        style = sheet.read_text(encoding="utf-8")
        assert not re.search(r"#[0-9a-f]{3,8}\b|\brgba?\(|\bhsl", style), sheet
        used = set(re.findall(r"var\((--[\w-]+)", look() + style))
        defined = set(re.findall(r"(--[\w-]+):", look() + style))
        from_scripts = {"--share", "--columns"}
        assert used <= defined | from_scripts, sheet
