"""Where the time of a search goes: encoding and re-ranking are measured where they happen."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from isthmus.records import Document

if TYPE_CHECKING:
    from isthmus.retrieval.reranker import Scorer
    from isthmus.retrieval.searcher import Encoder


class _Spent(threading.local):
    """Seconds by stage, of the thread that asks."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}


_spent = _Spent()


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """The seconds that stages take within the block, in this thread: encode, search, rerank."""
    _spent.seconds = seconds = {"encode": 0.0, "search": 0.0, "rerank": 0.0}
    start = perf_counter()
    yield seconds
    whole = perf_counter() - start
    seconds["search"] = whole - seconds["encode"] - seconds["rerank"]


@contextmanager
def _stage(name: str) -> Iterator[None]:
    start = perf_counter()
    yield
    seconds = _spent.seconds
    seconds[name] = seconds.get(name, 0.0) + perf_counter() - start


class RememberingEncoder:
    """An encoder that keeps the vectors of the last queries.

    The page asks several retrievers for one query, and long documents ask twice.
    """

    def __init__(self, encoder: Encoder, remembered: int) -> None:
        self.encoder = encoder
        self._most = remembered
        self._vectors: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Where it came from, as messages call it."""
        return self.encoder.name

    @property
    def fingerprint(self) -> str:
        """A digest of weights, tokenizer and settings."""
        return self.encoder.fingerprint

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left to encode."""
        return self.encoder.has_tokens(text)

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """One row per text; those of equal texts are computed once."""
        with _stage("encode"):
            with self._lock:
                found = {text: self._vectors[text] for text in texts if text in self._vectors}
            if new := [text for text in dict.fromkeys(texts) if text not in found]:
                vectors = self.encoder.encode_queries(new)
                found |= {text: vectors[row : row + 1] for row, text in enumerate(new)}
            self._keep(found)
            return _joined([found[text] for text in texts])

    def _keep(self, found: dict[str, Any]) -> None:
        with self._lock:
            for text, vector in found.items():
                # A copy: a row of a batch would keep all of it.
                self._vectors.setdefault(text, vector.copy() if self._most else vector)
                self._vectors.move_to_end(text)
            while len(self._vectors) > self._most:
                self._vectors.popitem(last=False)


def _joined(rows: Sequence[Any]) -> Any:
    if len(rows) == 1:
        return rows[0]
    if isinstance(rows[0], np.ndarray):
        return np.concatenate(rows)
    from scipy.sparse import vstack

    return vstack(rows, format="csr")


class TimedScorer:
    """A cross-encoder whose time counts as that of re-ranking."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def score(self, pairs: Sequence[tuple[str, Document]]) -> npt.NDArray[np.float32]:
        """One score per pair of a query's text and a document."""
        with _stage("rerank"):
            return self.scorer.score(pairs)
