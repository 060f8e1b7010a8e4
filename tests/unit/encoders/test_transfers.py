"""Results come home in order; of a GPU, while it works on later ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isthmus.encoders import transfers
from isthmus.encoders.transfers import send, taken


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, where, when a GPU is only pretended."""
    happened: list[str] = []
    stream = ["main"]

    def record() -> Any:
        number = len([event for event in happened if event.startswith("start")])
        return SimpleNamespace(wait=lambda: happened.append(f"{stream[0]} waits for {number}"))

    @contextmanager
    def within(name: str) -> Iterator[None]:
        stream[0] = name
        yield
        stream[0] = "main"

    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda _: SimpleNamespace(record_event=record)
    )
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(transfers, "_way_home", lambda _: "home")
    return happened


def results(
    count: int, happened: list[str], on_gpu: bool, but: Collection[int] = ()
) -> Iterator[Any]:
    for number in range(1, count + 1):
        happened.append(f"start {number}")
        yield SimpleNamespace(is_cuda=on_gpu ^ (number in but), device="cuda", number=number)


def number_of(result: Any) -> int:
    return int(result.number)


def test_two_more_are_started_before_one_is_taken(events: list[str]) -> None:
    def take(result: Any) -> int:
        events.append(f"take {result.number}")
        return number_of(result)

    assert list(taken(results(4, events, on_gpu=True), take)) == [1, 2, 3, 4]
    one, two, three, four = (
        [f"home waits for {number}", f"take {number}"] for number in range(1, 5)
    )
    started = [f"start {number}" for number in range(1, 5)]
    assert events == [*started[:3], *one, started[3], *two, *three, *four]


def test_on_a_cpu_each_is_taken_at_once(events: list[str]) -> None:
    # Nothing is gained by more of them, and each takes memory.
    found = taken(results(3, events, on_gpu=False), number_of)
    assert next(found) == 1
    assert events == ["start 1"]
    assert list(found) == [2, 3]


@pytest.mark.parametrize("on_host", [{1}, {2}, {3}, {5}, {1, 2}, {2, 3, 4}, {1, 3, 5}])
def test_a_result_on_the_host_waits_for_its_turn(events: list[str], on_host: set[int]) -> None:
    found = taken(results(5, events, on_gpu=True, but=on_host), number_of)
    assert list(found) == [1, 2, 3, 4, 5]


def test_what_is_behind_a_result_on_the_host_need_not_wait(events: list[str]) -> None:
    # The first is taken once two more are started, as ever; the second is there, and no GPU's.
    found = taken(results(5, events, on_gpu=True, but={2}), number_of)
    assert [next(found), next(found)] == [1, 2]
    assert events == ["start 1", "start 2", "start 3", "home waits for 1"]


def test_no_results() -> None:
    assert list(taken([], torch.Tensor.tolist)) == []


def test_what_is_on_the_device_already_is_sent_as_it_is() -> None:
    tensor = torch.arange(3)
    assert send(tensor, torch.device("cpu")) is tensor


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_gives_what_it_was_asked_for() -> None:
    device = torch.device("cuda")
    rows = [torch.randn(512, 512) for _ in range(7)]
    torch.cuda.set_sync_debug_mode("error")  # stops at whatever waits for the device
    try:
        sent = [send(row, device) for row in rows]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    products = taken((row @ row for row in sent), lambda product: product.cpu())
    for row, found in zip(rows, products, strict=True):
        torch.testing.assert_close(found, row @ row, rtol=1e-2, atol=1e-1)
