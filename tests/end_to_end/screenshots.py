"""The pictures of docs/how-to/serve.md, of a running `isthmus serve` whose address is given.

    python -m tests.end_to_end.screenshots http://127.0.0.1:8080 "a query"

They are of the page as Debian's Chromium shows it, in few colours, so that they stay small.
"""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser, ViewportSize, expect, sync_playwright

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDE, PHONE = ViewportSize(width=1440, height=900), ViewportSize(width=390, height=800)


class Shot(NamedTuple):
    """What to show, how, and what to click before the picture is taken."""

    state: dict[str, str]
    scheme: Any = "light"
    size: ViewportSize = WIDE
    clicks: tuple[str, ...] = ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="of the server, as it printed it")
    parser.add_argument("query")
    parser.add_argument("--output", type=Path, default=IMAGES)
    chosen = parser.parse_args()
    asked = {"q": chosen.query}
    shots = {
        "light": Shot(asked, clicks=("#compare",)),
        "dark": Shot(asked, "dark", clicks=("#compare", ".column:nth-child(2) .hit a")),
        "phone": Shot(asked, size=PHONE),
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        for name, shot in shots.items():
            write(taken(browser, chosen.address, shot), chosen.output / f"serve-{name}.png")


def taken(browser: Browser, address: str, shot: Shot) -> bytes:
    """The picture, after everything has come."""
    page = browser.new_page(
        color_scheme=shot.scheme,
        viewport=shot.size,
        device_scale_factor=2 if shot.size is PHONE else 1,
    )
    page.goto(f"{address.rstrip('/')}/?{urlencode(shot.state)}", wait_until="networkidle")
    for click in shot.clicks:
        page.locator(click).first.click()
        page.wait_for_load_state("networkidle")
    page.mouse.move(0, 0)
    waiting = page.get_by_text(re.compile(r"(Search|Explain|Read)ing …"))
    expect(waiting).to_have_count(0, timeout=60_000)
    page.wait_for_timeout(300)  # what fades has faded
    picture = page.screenshot()
    page.close()
    return picture


def write(picture: bytes, file: Path) -> None:
    """Writes a picture with 256 colours."""
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
    print(file, f"{file.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
