"""Progress: a live bar on a terminal, readable lines elsewhere, one voice per launch."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from isthmus import progress
from isthmus.progress import Bar, Part, notice, planned, track


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=stream, width=200))
    monkeypatch.delenv("RANK", raising=False)
    return stream


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("isthmus.progress.time.monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_every_half_minute(screen: io.StringIO, clock: list[float]) -> None:
    with Bar("encode", 400, "texts") as bar:
        for _ in range(4):
            clock[0] += 20
            bar.advance(100, note="loss 1.0")
    lines = screen.getvalue().splitlines()
    assert lines == [
        "encode: 200/400, 5.0 texts/s, 40 s, loss 1.0",
        "encode: 400/400, 5.0 texts/s, 80 s, loss 1.0",
        "encode: 400/400, 5.0 texts/s, 80 s, loss 1.0, done",
    ]


def test_a_plan_tells_the_time_left_of_the_whole(screen: io.StringIO, clock: list[float]) -> None:
    with planned("adapt", [Part("train", 60.0), Part("index", 10.0), Part("index", 30.0)]):
        with Bar("tokenise", 5):
            pass
        with Bar("train", 2, "steps") as bar:
            clock[0] += 60
            bar.advance(1)
        with Bar("index docs", 4, "documents") as bar:
            clock[0] += 40
            bar.advance(4)
        with Bar("index docs", None, "passages"):
            pass
    with Bar("index docs", 1):
        pass
    assert [line.partition("(")[2] for line in screen.getvalue().splitlines()] == [
        "adapt 0 %)",
        "adapt 30 %, 2 min left)",
        "adapt 60 %, 40 s left)",
        "adapt 70 %, 43 s left)",
        "adapt 70 %, 43 s left)",
        "adapt 100 %, 0 s left)",
        "",
    ]


def test_a_terminal_gets_one_bar_for_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=160)
    monkeypatch.setattr(progress, "console", console)
    monkeypatch.delenv("RANK", raising=False)
    parts = [Part("train", 3.0), Part("index", 1.0)]
    with planned("adapt", parts), Bar("train", 2, "steps") as bar:
        bar.advance(2, note="loss 0.5")
    shown = stream.getvalue()
    assert "adapt 75 %" in shown
    assert "train: 2/2" in shown
    assert "loss 0.5" in shown


def test_what_fails_is_not_called_done(screen: io.StringIO) -> None:
    with pytest.raises(ValueError, match="broken"), Bar("read"):
        raise ValueError("broken")
    assert "done" not in screen.getvalue()


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "console", console)
    monkeypatch.delenv("RANK", raising=False)
    with Bar("train", 2, "steps") as bar:
        bar.advance(2, note="loss 0.5")
    shown = stream.getvalue()
    assert "train" in shown
    assert "2/2" in shown
    assert "loss 0.5" in shown


def test_only_the_first_process_speaks(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    notice("hello")
    assert list(track([1, 2], "count")) == [1, 2]
    assert screen.getvalue() == ""
    monkeypatch.setenv("RANK", "0")
    notice("[CLS] stays as it is")
    assert screen.getvalue() == "[CLS] stays as it is\n"


def test_what_a_terminal_would_obey_is_shown(screen: io.StringIO) -> None:
    notice("skipped \x1b[2J\x9b and \u202e\tin\nlines")
    assert screen.getvalue() == "skipped \\x1b[2J\\x9b and \\u202e\tin\nlines\n".expandtabs()


def test_tracked_items_pass_unchanged(screen: io.StringIO) -> None:
    assert list(track(iter("abc"), "letters", unit="letters")) == ["a", "b", "c"]
    assert screen.getvalue().startswith("letters: 3, ")
