"""What a command that is stopped says, and how it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.factories import write_corpus

from isthmus import cli
from isthmus.indexes import documents as documents_module

FORK = multiprocessing.get_context("fork")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    """The exit status of a command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["isthmus", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


@pytest.mark.parametrize(
    ("number", "status", "reason"),
    [(signal.SIGTERM, 143, "stopped by SIGTERM"), (signal.SIGINT, 130, "interrupted")],
)
def test_a_build_that_is_stopped(
    number: int,
    status: int,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", {str(n): f"w{n}" for n in range(9)})
    plain = documents_module.DocumentBuilder.add

    def stop(self: Any, documents: Any) -> None:
        os.kill(os.getpid(), number)
        time.sleep(0.1)  # the signal is heeded
        plain(self, documents)

    before = signal.getsignal(signal.SIGTERM)
    command = ("index", corpus, "--output", tmp_path / "index")
    with monkeypatch.context() as patch:
        patch.setattr(documents_module.DocumentBuilder, "add", stop)
        assert run(patch, *command) == status
    assert f"{reason}: run the same command again to resume\n" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before
    assert not list(tmp_path.rglob("*.lock")), "nobody is kept out"
    monkeypatch.setattr(sys, "argv", ["isthmus", *map(str, command)])
    assert run(monkeypatch, *command) == 0


def test_what_a_library_makes_of_it_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
        except KeyboardInterrupt:
            raise RuntimeError("a thread was stopped") from None

    monkeypatch.setattr("isthmus.retrieval.search.search", stop)
    assert run(monkeypatch, "search", "nowhere", "a query") == 143
    assert "stopped by SIGTERM" in capsys.readouterr().err


def test_workers_end_as_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int | None] = []
    running = FORK.Event()

    def work() -> None:
        running.set()
        time.sleep(60)

    def start_a_worker(*_: object, **__: object) -> None:
        worker = FORK.Process(target=work)
        worker.start()
        assert running.wait(60)
        worker.terminate()
        worker.join()
        ended.append(worker.exitcode)
        sys.exit(0)

    monkeypatch.setattr("isthmus.retrieval.search.search", start_a_worker)
    assert run(monkeypatch, "search", "nowhere", "a query") == 0
    assert ended == [-signal.SIGTERM]
