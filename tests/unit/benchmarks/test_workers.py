"""Processes that do steps: a lost one is replaced, and its step is known as lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from isthmus.benchmarks.protocol.plan import Step
from isthmus.benchmarks.runner.steps import Place
from isthmus.benchmarks.runner.workers import Ended, Workers


@pytest.mark.nightly
def test_a_lost_process_is_replaced_and_all_end_with_their_starter(tmp_path: Path) -> None:
    def step(name: str) -> Step:
        return Step(name, "base", "0" * 32, (0,))

    fifo = tmp_path / "texts.jsonl"
    os.mkfifo(fifo)  # whose reader waits for ever
    folders = {"waits": "waits", "fails": "fails"}
    workers = Workers(1, Place(tmp_path, folders, (f"jsonl:{fifo}",)), [])
    try:
        workers.begin(step("waits"))
        assert workers.idle == 0
        log = tmp_path / "logs" / "worker-0.log"
        while not (log.is_file() and "waits" in log.read_text()):
            time.sleep(0.01)
        first = workers._workers[0].process.pid
        os.kill(first, signal.SIGKILL)
        (lost,) = ended(workers)
        assert (lost.step.name, lost.reason) == ("waits", "its process was ended by SIGKILL")
        fifo.unlink()  # now there is none: the step fails at once
        workers.begin(step("fails"))
        (failed,) = ended(workers)
        assert failed.reason is not None
        assert "texts.jsonl" in failed.reason
        assert workers._workers[0].process.pid != first
    finally:
        workers.stop()
    assert not workers._workers[0].process.is_alive()


def ended(workers: Workers) -> list[Ended]:
    found: list[Ended] = []
    while not found:
        found = workers.ended(1.0)
    return found
