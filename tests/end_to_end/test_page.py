"""The search page in a real browser: by pointer, by keyboard, on a phone, in the dark."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

import isthmus
from isthmus.encoders import DenseEncoder, DenseSettings
from isthmus.nn.backbone import new_backbone
from isthmus.serving.serve import open_app
from isthmus.text.tokenizer import new_tokenizer

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="isthmus[serve] is not installed")
CHROMIUM = "/usr/bin/chromium"
if not Path(CHROMIUM).exists():
    pytest.skip(f"no browser at {CHROMIUM} (apt install chromium)", allow_module_level=True)

pytestmark = pytest.mark.nightly
expect = playwright.expect
DOCUMENTS = {
    "keeper": ("The keeper", "The keeper lights the lighthouse at dusk. He sleeps by day."),
    "harbour": ("The harbour", "Ships enter the harbour at night. The lighthouse shows the way."),
    "tide": ("Tides", "The tide falls twice a day. A harbour without water has no ships."),
    "storm": ("A storm at sea", "In a storm no ship leaves. The harbour is closed by a chain."),
    "lens": ("The lens", "A lighthouse lens gathers light. It turns on a bath of mercury."),
    "script": (
        "<script>window.broken = 1</script> harbour",
        "<img src=x onerror='window.broken = 1'></p><style>* {display: none}</style> harbour "
        "<a href='javascript:window.broken = 1'>go</a> <iframe src='https://example.org'></iframe>",
    ),
    "reversed": ("\u202eharbour\u2066 backwards", "A harbour \u202e that runs \u2067 backwards."),
    "hebrew": ("נמל", "הספינות נכנסות לנמל harbour בלילה."),
    "huge": ("harbour log", "harbour wind west, sea calm.\n" * 10_000),
}
MANY = [
    (f"log-{day}", f"Day {day}", f"On day {day} a ship came into the harbour.") for day in range(30)
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of fields for BM25 and a dense encoder; days of the log have metadata."""
    folder = tmp_path_factory.mktemp("page")
    lines = [(name, *texts) for name, texts in DOCUMENTS.items()] + MANY
    records = [
        {"_id": name, "title": title, "text": text, **_metadata(name)}
        for name, title, text in lines
    ]
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    tokenizer = new_tokenizer([text[:2000] for _, _, text in lines], 400)
    backbone = new_backbone("tiny", tokenizer.rows, tokenizer.pad_id, max_length=64, seed=0)
    settings = DenseSettings(pooling="mean", query_max_length=32, document_max_length=64)
    DenseEncoder(backbone, tokenizer, settings).save(folder / "dense")
    isthmus.index(corpus, folder / "both", ["bm25", str(folder / "dense")])
    return folder / "both"


def _metadata(name: str) -> dict[str, Any]:
    if not name.startswith("log-"):
        return {}
    day = int(name.removeprefix("log-"))
    return {"day": day, "wind": "west" if day % 2 else "<b>east</b>", "calm": day < 3}


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of an app on a free port."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = Thread(target=server.run, kwargs={"sockets": [listener]})
        running.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        running.join()


@pytest.fixture(scope="module")
def address(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of both fields, and of both fused, that takes judgements."""
    with served(open_app(index, judgements=tmp_path_factory.mktemp("judged"))) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()


class Watched:
    """A page of its own context, and all that it did which it must not."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.address = address
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page = browser.new_context(**options).new_page()
        self.page.set_default_timeout(5000)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        self.page.on("console", self._said)
        self.page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning") and "status of 422" not in message.text:
            self.wrong.append(f"console: {message.text}")

    def _asked(self, request: Any) -> None:
        self.asked.append(request.url)
        if not request.url.startswith(self.address):
            self.wrong.append(f"elsewhere: {request.url}")

    def open(self, **state: str | list[str]) -> Any:
        """The page in this state of its address."""
        self.page.goto(f"{self.address}/?{urlencode(state, doseq=True)}")
        return self.page


@pytest.fixture
def watched(browser: Any, address: str) -> Iterator[Any]:
    """Makes pages; afterwards none of them has complained, or asked another host for anything."""
    made: list[Watched] = []

    def make(**options: Any) -> Watched:
        made.append(Watched(browser, address, **options))
        return made[-1]

    yield make
    for one in made:
        one.page.context.close()
        assert not one.wrong
        assert len(one.asked) > 5, "the page has loaded"


ALL = ["bm25", "dense", "tokens", "fused"]


def test_search_compare_explain_and_come_back(watched: Any) -> None:
    tab = watched()
    page = tab.open()
    expect(
        page.get_by_role("heading", name=f"{len(DOCUMENTS) + len(MANY)} documents")
    ).to_be_visible()
    page.get_by_label("Search the documents").press_sequentially(
        "keeper of the lighthouse", delay=15
    )
    first = page.locator(".hit").first
    expect(page.locator(".hit")).to_have_count(10)
    assert len([url for url in tab.asked if "/api/search" in url]) <= 3, "not one for every key"
    page.get_by_role("button", name="Dense").click()
    page.get_by_role("button", name="Fused").click()
    page.get_by_role("button", name="BM25").click()
    page.get_by_role("button", name="Side by side").click()
    expect(page.locator(".column")).to_have_count(4)
    expect(page.locator(".moved").first).to_have_text(re.compile("↑|↓|=|new"))
    bm25 = page.locator(".column").first
    expect(bm25.locator(".hit h3").first).to_have_text("The keeper")
    expect(bm25.locator("mark").first).to_have_text(re.compile("keeper|lighthouse", re.IGNORECASE))
    bm25.locator(".hit").first.click()
    panel = page.get_by_role("dialog", name="The keeper")
    total = panel.locator("tfoot td.number").inner_text()
    adds = panel.locator("tbody tr td:nth-child(3)").all_inner_texts()
    assert sum(map(float, adds)) == pytest.approx(float(total), abs=0.002)
    expect(panel.locator(".text")).to_contain_text("He sleeps by day.")
    panel.get_by_role("button", name="Dense").click()
    expect(panel.locator(".sentences span").first).to_be_visible()
    panel.get_by_role("button", name="Fused").click()
    expect(panel).to_contain_text("What each retriever adds")
    said = parse_qs(urlsplit(page.url).query)
    assert said == {
        "q": ["keeper of the lighthouse"],
        "r": ALL,
        "doc": ["keeper"],
        "why": ["fused"],
    }
    other = watched()
    shared = other.open(**said)
    expect(shared.get_by_role("dialog", name="The keeper")).to_contain_text(
        "What each retriever adds"
    )
    expect(shared.locator(".column")).to_have_count(4)
    for _ in range(3):
        page.go_back()
    expect(page.locator("dialog#panel")).not_to_be_visible()
    expect(page.locator(".column")).to_have_count(4)
    expect(first).to_be_visible()


def test_a_filter_is_part_of_what_is_shown_and_its_errors_are_said_once(watched: Any) -> None:
    page = watched().open(q="harbour", n="50", r=ALL)
    expect(page.locator("#filter-fields")).to_have_text(
        "by day (number), wind, calm (true or false)"
    )
    box = page.get_by_label("Filter")
    box.fill('day>=27 wind="<b>east</b>"')
    box.press("Enter")
    dense = page.locator(".column[data-name=dense]")
    expect(dense.locator(".hit")).to_have_count(1)
    expect(dense.locator(".fields li")).to_have_text(
        ["day: 28", "wind: <b>east</b>", "calm: false"]
    )
    assert parse_qs(urlsplit(page.url).query)["f"] == ['day>=27 wind="<b>east</b>"']
    dense.locator(".hit a").click()
    expect(page.locator("#panel .fields li").first).to_have_text("day: 28")
    page.get_by_role("button", name="Close").click()
    box.fill("day>=27 wnid=west")
    box.press("Enter")
    said = page.get_by_role("alert").filter(visible=True)
    expect(said).to_have_count(1)
    expect(said).to_contain_text("no document has a field 'wnid'")
    expect(page.locator(".hit")).to_have_count(0)
    page.go_back()
    expect(box).to_have_value('day>=27 wind="<b>east</b>"')
    expect(said).to_have_count(0)
    expect(dense.locator(".hit")).to_have_count(1)
    box.fill("day>99")
    box.press("Enter")
    expect(page.locator(".empty").first).to_contain_text("filter lets through")
    box.fill("")
    page.get_by_label("Search the documents").focus()
    expect(dense.locator(".hit")).to_have_count(len(DOCUMENTS) + len(MANY))


def test_nothing_found_and_queries_that_cannot_be(watched: Any) -> None:
    tab = watched()
    page = tab.open(r="bm25", q="xylophone")
    expect(page.locator(".empty")).to_contain_text("Nothing found. no document holds a term")
    page.get_by_label("Search the documents").fill("harbour " * 200)
    expect(page.get_by_role("alert")).to_contain_text("1,599 characters: a query has at most 1,000")
    page.get_by_label("Search the documents").fill("   ")
    expect(page.get_by_role("heading", name="documents")).to_be_visible()
    page.get_by_label("Search the documents").fill("<b>\u202e%00 \" ' \\ ::")
    expect(page.locator(".column .empty, .column .failure, .column .hit").first).to_be_visible()
    assert not [url for url in tab.asked if "harbour+harbour" in url], "refused before it is sent"


def test_a_server_that_is_slow_or_gone(watched: Any) -> None:
    tab = watched()
    page = tab.page
    page.clock.install()
    held: list[Any] = []
    page.route(re.compile("api/search.*q=tide"), lambda route: held.append(route))
    tab.open(r="bm25")
    box = page.get_by_label("Search the documents")
    box.fill("tide")
    page.clock.run_for(200)
    expect(page.locator("#busy")).to_be_attached()
    page.wait_for_timeout(0)
    page.clock.run_for(3000)
    expect(page.locator(".column .about")).to_have_text("Still searching …")
    box.fill("keeper")
    page.clock.run_for(200)
    expect(page.locator(".hit h3").first).to_have_text("The keeper")
    for route in held:  # an answer that comes late changes nothing
        route.fulfill(json={"hits": [], "milliseconds": {"total": 1}, "note": "late"})
    page.route(re.compile("api/search"), lambda route: route.abort())
    box.fill("storm")
    page.clock.run_for(200)
    expect(page.get_by_role("alert").filter(has_text="The server does not answer.")).to_be_visible()
    page.unroute(re.compile("api/search"))
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".hit h3").first).to_have_text("A storm at sea")
    assert len(held) == 1
    tab.wrong = [one for one in tab.wrong if "ERR_FAILED" not in one]  # which this test made


def test_hostile_documents_are_text(watched: Any) -> None:
    page = watched().open(q="harbour", n="50", r="bm25")
    titles = page.locator(".hit h3")
    expect(titles.filter(has_text="<script>window.broken = 1</script> harbour")).to_be_visible()
    page.locator("[data-id=script] a").click()
    expect(page.locator("#panel .text")).to_contain_text(
        "<img src=x onerror='window.broken = 1'></p>"
    )
    assert page.locator("#panel .text").locator("img, style, a, iframe, script").count() == 0
    assert page.evaluate("window.broken") is None
    isolated = page.locator("[data-id=reversed] h3 bdi").evaluate(
        "one => getComputedStyle(one).unicodeBidi"
    )
    assert isolated == "isolate", "what it overrides ends with it"
    assert (
        page.locator("[data-id=hebrew] .snippet").evaluate("one => getComputedStyle(one).direction")
        == "rtl"
    )
    page.locator("[data-id=huge] a").click()
    text = page.locator("#panel .text")
    expect(text.get_by_role("button")).to_contain_text("characters left")
    assert text.evaluate("one => one.textContent.length") < 25_000
    text.get_by_role("button").click()
    assert 30_000 < text.evaluate("one => one.textContent.length") < 50_000
    expect(text).to_contain_text("The server sends no more: 90,000 characters are left out.")


def test_a_token_is_asked_for_and_leaves_the_address(browser: Any, index: Path) -> None:
    token = "a-token-that-is-long-enough"
    with served(open_app(index, token=token)) as address:
        page = Watched(browser, address).page
        page.goto(f"{address}/?q=keeper#token={token}")
        expect(page.locator(".hit h3").first).to_have_text("The keeper")
        assert token not in page.url
        page.context.close()
        page = Watched(browser, address).open(q="keeper")
        asked = page.get_by_role("dialog", name="A token is needed")
        asked.get_by_label("Token").fill("another")
        asked.get_by_role("button").click()
        expect(asked.get_by_label("Token")).to_have_value("")
        asked.get_by_label("Token").fill(token)
        asked.get_by_role("button").click()
        expect(page.locator(".hit h3").first).to_have_text("The keeper")
        page.context.close()


def test_a_narrow_screen(watched: Any) -> None:
    page = watched(viewport={"width": 360, "height": 720}, has_touch=True, is_mobile=True).open(
        q="harbour ships", r=ALL
    )
    expect(page.locator(".hit")).to_have_count(30)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator(".hit a").first.tap()
    panel = page.locator("#panel")
    expect(panel.locator(".text")).to_contain_text("harbour", ignore_case=True)
    assert panel.bounding_box()["width"] == 360
    assert panel.evaluate("one => one.scrollWidth") <= 360
    page.get_by_role("button", name="Close").tap()
    expect(panel).not_to_be_visible()


def test_the_api_is_described_without_anything_from_elsewhere(watched: Any) -> None:
    tab = watched()
    tab.page.goto(f"{tab.address}/docs")
    search = tab.page.locator(".address").filter(has_text="GET /api/search")
    expect(search.locator("tr").filter(has_text="Number of hits.")).to_contain_text("1 to 100")
    expect(search.locator("pre")).to_contain_text("snippet")


def lightness(page: Any) -> float:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


def test_dark_and_light(watched: Any) -> None:
    assert lightness(watched(color_scheme="dark").open()) < 50
    assert lightness(watched(color_scheme="light").open()) > 200


STATES: dict[str, tuple[dict[str, Any], str]] = {
    "landing": ({}, ".landing"),
    "filtered": ({"q": "harbour", "f": "day>3 wind=west"}, ".fields"),
    "refused": ({"q": "harbour", "f": "day"}, "#filter-problem"),
    "columns": ({"q": "harbour", "r": ALL, "n": "3"}, ".column:nth-child(4) .hit"),
    "panel": ({"q": "keeper", "n": "5", "doc": "keeper", "why": "fused"}, "#panel .sentences"),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_stands_in_the_way_of_anyone(watched: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    tab = watched(color_scheme=scheme)
    # What the dark can change are colours.
    rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
    found = []
    for state, (said, there) in STATES.items():
        expect(tab.open(**said).locator(there).first).to_be_visible()
        answer = axe.run(tab.page, options={"resultTypes": ["violations"], **rules}).response
        for one in answer["violations"]:
            if one["impact"] in ("serious", "critical"):
                found += [(state, one["id"], node["html"][:200]) for node in one["nodes"]]
    assert not found
