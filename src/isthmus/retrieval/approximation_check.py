"""Approximations beside an index, measured with queries that its own documents answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

from isthmus.config.output import only_writer
from isthmus.errors import MismatchError, SettingsError
from isthmus.indexes.approximation import (
    About,
    Approximation,
    ApproximationSettings,
    building_command,
    sampled_rows,
)
from isthmus.indexes.backends import suits
from isthmus.indexes.kinds._base import kind_of
from isthmus.indexes.manifest import Kind
from isthmus.indexes.segments.commit import refuse_links
from isthmus.retrieval.passage_cutter import unit_of
from isthmus.retrieval.searcher import Searcher, open_searcher

_SENTENCE_END = re.compile(r"(?<=[.!?])\s")


def check_approximation(settings: ApproximationSettings, kind: Kind, sharded: bool = False) -> None:
    """Refuses what cannot be built, before anything is encoded."""
    if not suits(settings.name, kind):
        allowed = [name for name in get_args(Approximation) if suits(name, kind)]
        raise SettingsError(
            f"approximate.name = {settings.name} is not for {kind} indexes",
            where="approximate.name",
            allowed=", ".join(allowed) or "none: BM25 is exact, and fast",
            remedy="choose one of these" if allowed else "leave approximate out",
        )
    if sharded:
        raise SettingsError(
            f"approximate.name = {settings.name} is not for an index that a cluster builds",
            where="approximate",
            allowed="an index in one piece",
            remedy="leave approximate out; when the index is there, "
            f"{building_command(Path('INDEX'), settings)}",
        )
    kind_of(kind).check_library(f"approximate.name={settings.name}")


def add_approximation(folder: Path, model: str | None, settings: ApproximationSettings) -> About:
    """Recall and speed of the approximation beside an index; it is built if it is not there yet.

    Queries are titles, or else first sentences, of documents from the whole corpus; without
    texts, some of the documents' own vectors.
    """
    refuse_links(folder)
    with only_writer(folder):
        searcher = open_searcher(folder, model, by=unit_of(folder))
        manifest = searcher.index.manifest
        if manifest.segments is not None:
            raise MismatchError(
                f"the index {str(folder)!r} is in segments, {settings.name} is of a whole",
                where=str(folder),
                allowed="an index in one piece",
                remedy=building_command(folder, settings),
            )
        queries = _sampled_queries(searcher)
        return kind_of(manifest.kind).approximate(folder, settings, queries)


def _sampled_queries(searcher: Searcher) -> Any:
    """Vectors of queries that some of the documents answer; None where there are no texts."""
    store, encoder = searcher.index.store, searcher.encoder
    assert encoder is not None
    documents = [store.document(row) for row in sampled_rows(len(store)).tolist()]
    texts = [d.title or _SENTENCE_END.split(d.text, maxsplit=1)[0] for d in documents]
    texts = [text for text in texts if encoder.has_tokens(text)]
    return encoder.encode_queries(texts) if texts else None
