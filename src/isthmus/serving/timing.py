"""Where the time of a request goes: stages of a search, and the counters that Prometheus reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest
from scipy.sparse import issparse, vstack

from isthmus.indexes.index import Index
from isthmus.indexes.ragged import Both, TokenVectors, joined
from isthmus.records import Document
from isthmus.retrieval.reranker import RerankingSearcher
from isthmus.retrieval.searcher import Encoder, Searcher

_spent = threading.local()
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """The seconds that stages take within the block, in this thread: encode, search, rerank."""
    _spent.seconds = seconds = {"encode": 0.0, "search": 0.0, "rerank": 0.0}
    start = perf_counter()
    yield seconds
    seconds["search"] = perf_counter() - start - seconds["encode"] - seconds["rerank"]


@contextmanager
def _stage(name: str) -> Iterator[None]:
    start = perf_counter()
    yield
    if seconds := getattr(_spent, "seconds", None):
        seconds[name] += perf_counter() - start


class QueryVectors:
    """The vectors of the last queries: the page asks several retrievers for one query."""

    def __init__(self, encode: Callable[[Sequence[str]], Any], most: int) -> None:
        self._encode = encode
        self._most = most
        self._kept: dict[str, Any] = {}
        self._lock = threading.Lock()

    def of(self, texts: Sequence[str]) -> Any:
        """What an encoder gives of these texts; that of equal ones is computed once."""
        with self._lock:
            found = {text: self._kept.pop(text) for text in {*texts} if text in self._kept}
            if new := [text for text in dict.fromkeys(texts) if text not in found]:
                vectors = self._encode(new)
                # By a list, which copies: a row of a batch would keep all of it.
                found |= {text: vectors[[row]] for row, text in enumerate(new)}
            self._kept |= found  # those of this search are now the last to go
            for text in list(self._kept)[: max(0, len(self._kept) - self._most)]:
                del self._kept[text]
        return _stacked([found[text] for text in texts])


def _stacked(rows: Sequence[Any]) -> Any:
    """The rows of single queries as those of a batch."""
    first = rows[0]
    if isinstance(first, Both):
        return Both.joined(rows)
    if isinstance(first, TokenVectors):
        return joined(rows)
    return vstack(rows, format="csr") if issparse(first) else np.concatenate(rows)


class TimedSearcher(Searcher):
    """A searcher whose encoding is measured, and that keeps the vectors of queries."""

    def __init__(
        self,
        index: Index,
        encoders: Mapping[str, Encoder],
        vectors: Mapping[str, QueryVectors],
        use: Sequence[str] = (),
    ) -> None:
        """The vectors are by field, as encoders are."""
        super().__init__(index, encoders, use)
        self._vectors = vectors

    def query_vectors(self, field: str, texts: Sequence[str]) -> Any:
        """The queries as a field takes them: texts for BM25, vectors otherwise."""
        if field not in self._vectors:
            return super().query_vectors(field, texts)
        with _stage("encode"):
            return self._vectors[field].of(texts)


class TimedReranker(RerankingSearcher):
    """A re-ranker whose scoring is measured."""

    def scores(self, pairs: Sequence[tuple[str, Document]]) -> npt.NDArray[np.float32]:
        """One score per pair of a query's text and a document."""
        with _stage("rerank"):
            return super().scores(pairs)


class Measurements:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        ProcessCollector(registry=own)
        self.requests = Counter(
            "isthmus_requests", "Requests by address and status.", ["path", "status"], registry=own
        )
        self.seconds = Histogram(
            "isthmus_request_seconds",
            "From request to answer.",
            ["path"],
            registry=own,
            buckets=_SECONDS,
        )
        self.stages = Histogram(
            "isthmus_stage_seconds",
            "Waiting, encoding, searching, re-ranking and snippets of one search.",
            ["retriever", "stage"],
            buckets=_SECONDS,
            registry=own,
        )
        self.documents = Gauge("isthmus_documents", "Documents that are served.", registry=own)
        self.openings = Counter(
            "isthmus_openings", "Changed indexes, opened or failed.", ["outcome"], registry=own
        )

    def text(self) -> bytes:
        """All of them, in Prometheus's text format."""
        return generate_latest(self._registry)
