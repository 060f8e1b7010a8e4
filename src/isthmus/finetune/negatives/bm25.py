"""Negatives from BM25: what shares words with the query and was not judged relevant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from isthmus.collections import Collection
from isthmus.config import Settings
from isthmus.finetune.mining import MiningSettings
from isthmus.indexes.bm25 import Bm25Index
from isthmus.indexes.building import already_built
from isthmus.indexes.manifest import Bm25Settings, CorpusOrigin, Description
from isthmus.progress import track
from isthmus.records import Query, Ranking

_BATCH = 64


class Bm25NegativesSettings(MiningSettings):
    """Which candidates are kept, and how they are scored."""

    scoring: Bm25Settings = Bm25Settings()


class Bm25:
    """Ranks the corpus for every training query by BM25."""

    Settings: type[Settings] = Bm25NegativesSettings

    def __init__(self, settings: Bm25NegativesSettings) -> None:
        self.settings = settings

    def rankings(
        self, collection: Collection, queries: Sequence[Query], titles: bool, cache: Path
    ) -> Iterator[Ranking]:
        """The best `range_max` documents of each query."""
        origin = CorpusOrigin(spec="training corpus", fingerprint=collection.fingerprint())
        description = Description(
            kind="bm25", corpus=origin, titles=titles, texts=False, bm25=self.settings.scoring
        )
        folder = cache / "bm25"
        if not already_built(folder, description):
            documents = track(collection.documents(), "index for negatives", unit="documents")
            Bm25Index.build(documents, folder, description, {})
        index = Bm25Index.open(folder)
        starts = range(0, len(queries), _BATCH)
        for start in track(starts, "mine negatives", unit="batches"):
            batch = queries[start : start + _BATCH]
            yield from index.search(
                [query.text for query in batch],
                self.settings.range_max,
                [query.id for query in batch],
            )
