"""bm25s without JAX, which it starts where it is installed, with most of a GPU's memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _as_if_absent(name: str) -> Iterator[None]:
    """Makes imports of a module fail inside the block; one loaded before is restored after it."""
    missing = object()
    before = sys.modules.get(name, missing)
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is missing:
            del sys.modules[name]
        else:
            sys.modules[name] = before  # type: ignore[assignment]


with _as_if_absent("jax"):
    import bm25s
    from bm25s.stopwords import STOPWORDS_EN, STOPWORDS_EN_PLUS

__all__ = ["STOPWORDS_EN", "STOPWORDS_EN_PLUS", "bm25s"]
