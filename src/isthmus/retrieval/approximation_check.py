"""Approximate search beside an index, measured on questions that its own documents answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

from isthmus.config.output import only_writer
from isthmus.errors import MismatchError, SettingsError
from isthmus.indexes.approximation import (
    About,
    ApproximateSettings,
    Approximation,
    building_command,
    sampled_rows,
    suits,
)
from isthmus.indexes.manifest import Kind
from isthmus.indexes.segments.commit import refuse_links
from isthmus.retrieval.searcher import Searcher, open_searcher

_SENTENCE_END = re.compile(r"(?<=[.!?])\s")


def check_approximate(settings: ApproximateSettings, kind: Kind, sharded: bool = False) -> None:
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
    if kind == "dense":
        from isthmus.indexes.dense.scan import import_faiss

        import_faiss(f"approximate.name={settings.name}")
    else:
        from isthmus.indexes.inverted.seismic_approximation import import_seismic

        import_seismic(f"approximate.name={settings.name}")


def add_approximation(folder: Path, model: str | None, settings: ApproximateSettings) -> About:
    """What the approximation beside an index is worth, built where it is not there yet.

    Questions are titles, or else first sentences, of documents from the whole corpus, encoded as
    queries; without texts, some of the documents' own vectors.
    """
    refuse_links(folder)
    with only_writer(folder):
        searcher = open_searcher(folder, model)
        manifest = searcher.index.manifest
        if manifest.segments is not None:
            raise MismatchError(
                f"the index {str(folder)!r} is in segments, {settings.name} is of a whole",
                where=str(folder),
                allowed="an index in one piece",
                remedy=building_command(folder, settings),
            )
        queries = _questions(searcher)
        if manifest.kind == "dense":
            from isthmus.indexes.dense.faiss_approximation import approximate

            return approximate(folder, settings, queries)
        from isthmus.indexes.inverted.seismic_approximation import build_seismic

        return build_seismic(folder, settings, queries)


def _questions(searcher: Searcher) -> Any:
    """Vectors of queries that some of the documents answer; None where there are no texts."""
    store, encoder = searcher.index.store, searcher.encoder
    assert encoder is not None
    documents = [store.document(row) for row in sampled_rows(len(store)).tolist()]
    texts = [d.title or _SENTENCE_END.split(d.text, maxsplit=1)[0] for d in documents]
    texts = [text for text in texts if encoder.has_tokens(text)]
    return encoder.encode_queries(texts) if texts else None
