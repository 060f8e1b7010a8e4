"""Approximate search beside a dense index, measured on questions that its own documents answer."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from isthmus.errors import SettingsError
from isthmus.indexes.dense.approximate import About, ApproximateSettings, approximate
from isthmus.indexes.dense.index import VECTORS
from isthmus.indexes.dense.scanning import import_faiss
from isthmus.search.searcher import open_searcher

_QUERIES = 200
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")


def check_approximate(settings: ApproximateSettings, kind: str, sharded: bool) -> None:
    """Refuses what cannot be built, before anything is encoded."""
    if kind != "dense" or sharded:
        raise SettingsError(
            f"approximate.name = {settings.name} is not for {'shards' if sharded else kind}",
            where="approximate",
            allowed="a dense index on one machine",
            remedy="leave approximate out",
        )
    import_faiss(f"approximate.name={settings.name}")


def add_approximation(folder: Path, model: str | None, settings: ApproximateSettings) -> About:
    """What the approximation beside a dense index is worth, built where it is not there yet.

    Questions are titles, or else first sentences, of documents from the whole corpus, encoded as
    queries; without texts, the documents' own vectors.
    """
    searcher = open_searcher(folder, model)
    store, encoder = searcher.index.store, searcher.encoder
    assert encoder is not None
    rows = np.unique(np.linspace(0, len(store) - 1, _QUERIES).astype(int)).tolist()
    if searcher.keeps_texts:
        documents = [store.document(row) for row in rows]
        texts = [d.title or _SENTENCE_END.split(d.text, maxsplit=1)[0] for d in documents]
        queries = encoder.encode_queries([text for text in texts if encoder.has_tokens(text)])
    else:
        queries = np.load(folder / VECTORS, mmap_mode="r")[rows].astype(np.float32)
    return approximate(folder, queries, settings)
