"""Asks the systems in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from benchmarks.sparse_search.system import usable_cores
from benchmarks.sparse_search.truth import Truth, recall
from benchmarks.sparse_search.vectors import Matrix
from benchmarks.sparse_search.worker import FailedError, Worker

TURN = 10  # queries in a row, so that waking up does not count
Row = dict[str, Any]


class _Open(NamedTuple):
    worker: Worker
    one_at_a_time: bool


class Turns:
    """The systems that are open; one that fails leaves, and its row says why."""

    def __init__(self, documents: Matrix, queries: Matrix, rounds: int) -> None:
        self._documents, self._queries, self._rounds = documents, queries, rounds
        self._numbers = range(queries.shape[0])
        self._open: dict[str, _Open] = {}
        self.facts: dict[str, Row] = {}

    def open(self, name: str, worker: Worker, facts: Row) -> None:
        """Lets a system join that was built."""
        self.facts[name] = facts
        self._open[name] = _Open(worker, True)
        seconds, about = self._call(name, "open"), self._call(name, "about")
        if about is not None:
            facts["open_seconds"] = seconds
            self._open[name] = _Open(worker, about)

    def measure(self, depth: int, truth: Truth) -> Iterator[list[Row]]:
        """A row per system, for so many results; again after every round, with what is known."""
        rows = {name: Row(system=name, k=depth) for name in self._open}
        for seconds in self._latencies(depth):
            for name, taken in seconds.items():
                rows[name]["p50_ms"], rows[name]["p99_ms"] = 1000 * np.percentile(taken, [50, 99])
            yield self._compared(rows)
        for rates, shares in self._rates(depth, truth):
            for name, (one, all_) in rates.items():
                rows[name].update(qps_core=one, qps_all=all_, recall=shares[name])
            yield self._compared(rows)

    def weigh(self) -> None:
        """Adds to the facts how much memory each holds by now."""
        for name in list(self._open):
            self.facts[name].update(self._call(name, "memory") or {})

    def _latencies(self, depth: int) -> Iterator[dict[str, np.ndarray]]:
        """Seconds per query, the best so far, after every round."""
        count = len(self._numbers)
        asked = [name for name, system in self._open.items() if system.one_at_a_time]
        taken = {name: np.full(count, np.inf) for name in asked}
        for _ in range(self._rounds + 1):  # the first also warms up
            for first in range(0, count, TURN):
                numbers = self._numbers[first : first + TURN]
                for name in [name for name in taken if name in self._open]:
                    answer = self._call(name, "ask", numbers, depth)
                    if answer is not None:
                        taken[name][numbers] = np.minimum(taken[name][numbers], answer[0])
            yield taken

    def _rates(
        self, depth: int, truth: Truth
    ) -> Iterator[tuple[dict[str, list[float]], dict[str, float]]]:
        """Queries per second on one thread and on all, the best so far, and recall, per round."""
        rates = {name: [0.0, 0.0] for name in self._open}
        shares = dict.fromkeys(self._open, 1.0)
        for turn in range(self._rounds):
            for place, threads in enumerate((1, usable_cores())):
                for name in list(self._open):
                    if turn > 0 and not self._open[name].one_at_a_time:
                        continue  # it repeats all queries itself
                    answer = self._call(name, "ask_all", depth, threads)
                    if answer is not None:
                        rates[name][place] = max(rates[name][place], answer[0])
                        share = self._recall(self._numbers, answer[1], truth)
                        shares[name] = min(shares[name], share)
            yield rates, shares

    def _compared(self, rows: dict[str, Row]) -> list[Row]:
        """Rows of those that have not failed, each beside the plain index and isthmus."""
        left = [row for name, row in rows.items() if name in self._open]
        for peer in ("plain", "isthmus"):
            _compare(left, peer)
        return left

    def _recall(self, numbers: Sequence[int], rows: Sequence[np.ndarray], truth: Truth) -> float:
        return recall(self._documents, self._queries, numbers, rows, truth)

    def _call(self, name: str, method: str, *arguments: object) -> Any:
        if name not in self._open:
            return None
        try:
            return self._open[name].worker.call(method, *arguments)
        except FailedError as failed:
            self.facts[name]["failed"] = str(failed)
            self._open.pop(name).worker.close()
            return None


def _compare(rows: Sequence[Row], peer: str) -> None:
    """Adds how many times as long as the peer each takes; by the rate where p50 is not known."""
    for base in [row for row in rows if row["system"] == peer]:
        for row in rows:
            if "p50_ms" in row:
                row[f"p50_to_{peer}"] = row["p50_ms"] / base["p50_ms"]
            if "qps_core" in row:
                row[f"by_rate_to_{peer}"] = base["qps_core"] / row["qps_core"]
