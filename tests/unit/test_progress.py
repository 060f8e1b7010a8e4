"""Progress: a live bar on a terminal, readable lines elsewhere, one voice per launch."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from isthmus import progress
from isthmus.progress import Bar, notice, track


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


def test_a_bar_within_a_bar_takes_its_place_and_its_time(
    screen: io.StringIO, clock: list[float]
) -> None:
    with Bar("fine-tune", 10, "steps") as outer:
        clock[0] += 40
        outer.advance(4)
        for seconds in (5, 40):  # the first too short for a line
            with Bar("encode", 100, "documents") as inner:
                clock[0] += seconds
                inner.advance(100)
        clock[0] += 40
        outer.advance(4)
    assert screen.getvalue().splitlines() == [
        "fine-tune: 4/10, 0.1 steps/s, 40 s",
        "encode: 100/100, 2.5 documents/s, 40 s",
        "encode: 100/100, 2.5 documents/s, 40 s, done",
        "fine-tune: 8/10, 0.1 steps/s, 80 s",
        "fine-tune: 8/10, 0.1 steps/s, 80 s, done",
    ]


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


def test_on_a_terminal_bars_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "console", console)
    monkeypatch.delenv("RANK", raising=False)
    with Bar("train", 2, "steps") as outer:
        with Bar("encode", 5, "documents") as inner:
            inner.advance(5)
        outer.advance(2)
    shown = stream.getvalue()
    assert "5/5" in shown
    assert "2/2" in shown.rpartition("encode")[2]


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
