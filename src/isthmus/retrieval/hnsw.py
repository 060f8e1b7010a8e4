"""A graph beside a dense index, measured with queries that its own documents answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from isthmus.config.output import only_writer
from isthmus.errors import MismatchError, SettingsError
from isthmus.indexes.dense.builder import build_hnsw
from isthmus.indexes.dense.hnsw import (
    About,
    HnswSettings,
    building_command,
    import_faiss,
    sampled_rows,
)
from isthmus.indexes.dense.index import DenseIndex
from isthmus.indexes.manifest import Kind, stated_manifest
from isthmus.indexes.segments.commit import refuse_links
from isthmus.retrieval.passage_cutter import unit_of
from isthmus.retrieval.searcher import Searcher, open_searcher

ChosenHnsw = bool | HnswSettings
"""What settings say of a graph: none, one as it is usual, or how it is built."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")


def check_hnsw(chosen: ChosenHnsw, kind: Kind, sharded: bool = False) -> HnswSettings | None:
    """How a graph is built, None for none; refused before anything is encoded if it cannot be."""
    if chosen is False:
        return None
    settings = HnswSettings() if chosen is True else chosen
    if kind != "dense":
        raise SettingsError(
            f"hnsw is for dense indexes, not for {kind}",
            "leave hnsw out: this index is searched exactly, and fast",
        )
    if sharded:
        raise SettingsError(
            "hnsw is not for an index that a cluster builds",
            "leave hnsw out, and build it when the index is there: "
            f"{building_command(Path('INDEX'), settings)}",
        )
    import_faiss("hnsw")
    return settings


def add_hnsw(folder: Path, model: str | None, settings: HnswSettings) -> About:
    """Recall and speed of the graph beside an index; it is built if it is not there yet.

    Queries are titles, or else first sentences, of documents from the whole corpus; without
    texts, some of the documents' own vectors.
    """
    refuse_links(folder)
    with only_writer(folder):
        if stated_manifest(folder).segments is not None:
            raise MismatchError(
                f"hnsw needs an index in one segment, and {str(folder)!r} has several",
                building_command(folder, settings),
            )
        queries = _sampled_queries(open_searcher(folder, model, by=unit_of(folder)))
        return build_hnsw(folder, DenseIndex.open(folder), settings, queries)


def _sampled_queries(searcher: Searcher) -> Any:
    """Vectors of queries that some of the documents answer; None where there are no texts."""
    store, encoder = searcher.index.store, searcher.encoder
    assert encoder is not None
    documents = [store.document(row) for row in sampled_rows(len(store)).tolist()]
    texts = [d.title or _SENTENCE_END.split(d.text, maxsplit=1)[0] for d in documents]
    texts = [text for text in texts if encoder.has_tokens(text)]
    return encoder.encode_queries(texts) if texts else None
