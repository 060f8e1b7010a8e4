"""What Prometheus reads of a server: requests, stages, batches, and how many wait."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import generate_latest

_SECONDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
_TOGETHER = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Measurements:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=own)
        self.requests = Counter(
            "isthmus_requests", "Requests by address and status.", ["path", "status"], registry=own
        )
        self.seconds = Histogram(
            "isthmus_request_seconds",
            "From request to answer.",
            ["path"],
            buckets=_SECONDS,
            registry=own,
        )
        self.stages = Histogram(
            "isthmus_stage_seconds",
            "Waiting, encoding, searching, re-ranking and snippets of one search.",
            ["retriever", "stage"],
            buckets=_SECONDS,
            registry=own,
        )
        self.together = Histogram(
            "isthmus_batch_queries", "Queries answered together.", buckets=_TOGETHER, registry=own
        )
        self.waiting = Gauge(
            "isthmus_waiting", "Searches that wait for a thread.", ["thread"], registry=own
        )
        self.documents = Gauge("isthmus_documents", "Documents that are served.", registry=own)
        self.openings = Counter(
            "isthmus_openings", "Indexes opened anew, by outcome.", ["outcome"], registry=own
        )

    def text(self) -> bytes:
        """All of them, in Prometheus's text format."""
        return generate_latest(self._registry)
