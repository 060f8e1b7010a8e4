"""A head fitted to what a dense index holds already: vectors, and the texts that they are of."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from isthmus.encoders.dense import DenseEncoder
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.index import Index
from isthmus.indexes.long_documents import LongDocuments
from isthmus.indexes.segments.index import SegmentedIndex
from isthmus.inspection.fitted_head import FittedHead, fit_head
from isthmus.records import Document
from isthmus.retrieval.searcher import Searcher, check_encoder

_ROWS = 2000
_known: WeakKeyDictionary[Searcher, FittedHead] = WeakKeyDictionary()


def index_head(searcher: Searcher, encoder: DenseEncoder) -> FittedHead:
    """The head for the vectors of a searcher's index, fitted once to up to 2,000 of its rows.

    Raises where the index keeps no texts, holds too few rows, lies on other machines, or was filled
    by another encoder.
    """
    if searcher not in _known:
        check_encoder(searcher.index.manifest, encoder, "corpus")
        index = searcher.index
        inner = index.index if isinstance(index, LongDocuments) else index
        documents, vectors = _drawn(inner) if searcher.keeps_texts else ([], None)
        _known[searcher] = fit_head(encoder, documents, vectors)
    return _known[searcher]


def _drawn(index: Index) -> tuple[list[Document], npt.NDArray[np.float32] | None]:
    """Rows from all over an index, in a random order, with their vectors."""
    parts: list[tuple[DenseIndex, npt.NDArray[np.int64]]] = []
    if isinstance(index, DenseIndex):
        parts = [(index, np.arange(len(index)))]
    elif isinstance(index, SegmentedIndex):
        parts = [(one, part.rows) for one, part in index.segments if isinstance(one, DenseIndex)]
    documents: list[Document] = []
    vectors = []
    total = sum(len(rows) for _, rows in parts)
    for one, rows in parts:
        count = -(-len(rows) * min(_ROWS, total) // total)
        chosen = rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]
        documents += one.store.documents(chosen)
        vectors.append(one.vectors[chosen].astype(np.float32))
    if not vectors:
        return [], None
    order = np.random.default_rng(0).permutation(len(documents))
    return [documents[place] for place in order], np.concatenate(vectors)[order]
