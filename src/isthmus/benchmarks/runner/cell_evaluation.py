"""What the test queries of every collection say about one retriever."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import xxhash

from isthmus.benchmarks.protocol.cells import Tested
from isthmus.benchmarks.protocol.plan import Step
from isthmus.collections import Judged, Problems, open_collection
from isthmus.collections.collection import choose_split
from isthmus.encoders import (
    DenseEncoder,
    DenseSettings,
    SparseEncoder,
    SparseSettings,
    load_encoder,
)
from isthmus.encoders.encoder import VectorSettings
from isthmus.encoders.model_settings import known_settings
from isthmus.evaluation.query_scores import QueryScores
from isthmus.indexes.segments.index import open_index
from isthmus.records import Query, Run
from isthmus.retrieval.many_queries import answers
from isthmus.retrieval.searcher import Searcher
from isthmus.retrieval.verbs.index import index
from isthmus.text.tokenizer import Tokenizer

_ALONE = 20  # queries that are timed one by one
_REMEMBERED = 200_000  # texts whose tokens a process keeps


def tests_of(model: str, step: Step, folder: Path) -> tuple[dict[str, Tested], dict[str, float]]:
    """The tests of a model by collection, and what searching the first of them costs.

    `folder` holds one index after the other, and is gone at the end.
    """
    encoder = _encoder(model, step.encoder)
    encoder.tokenizer = _Remembering(encoder.tokenizer.pretrained)
    parameters = sum(weight.numel() for weight in encoder.backbone.parameters())
    costs: dict[str, float] = {"parameters": float(parameters)}
    found: dict[str, Tested] = {}
    indexed, seconds = "", 0.0
    for number, test in enumerate(step.tests):
        if test.spec != indexed:  # else another split of the same documents
            shutil.rmtree(folder, ignore_errors=True)
            began = time.monotonic()
            index(test.spec, folder, encoder, settings={"texts": False, "problems": "skip"})
            indexed, seconds = test.spec, time.monotonic() - began
            searcher = Searcher(encoder, open_index(folder))
        queries, judged = _judged(test.spec, test.split)
        found[test.collection] = _tested(searcher, queries, judged, step)
        if number == 0:
            costs |= {
                "index_seconds": seconds,
                "index_bytes": float(sum(f.stat().st_size for f in folder.rglob("*"))),
                "query_seconds": _seconds_alone(searcher, queries, step.depth),
            }
    shutil.rmtree(folder, ignore_errors=True)
    return found, costs


def _encoder(model: str, kind: str) -> DenseEncoder | SparseEncoder:
    """The model as it was made; where it was made for another kind of vectors, as that kind.

    LexMAE, say, leaves a model that is described as sparse: in a column of dense retrieval its
    [CLS] is read, like those of others.
    """
    kinds: dict[str, type[DenseSettings | SparseSettings]] = {
        "dense": DenseSettings, "sparse": SparseSettings,
    }  # fmt: skip
    before = known_settings(model) if kind else None
    if not kind or isinstance(before, kinds[kind]):
        return load_encoder(model)
    if before is None:
        return load_encoder(model, {"encoder": kind})
    kept = before.model_dump(include={*VectorSettings.model_fields})
    return load_encoder(model, kinds[kind].parse(kept, where=model))


def _tested(searcher: Searcher, queries: Sequence[Query], judged: Judged, step: Step) -> Tested:
    batches = answers(searcher, queries, step.depth, Problems("skip"))
    run = Run(step.name, {one.query_id: one for batch in batches for one in batch})
    scores = QueryScores(step.measures, judged)
    scores.add(run)
    values = scores.by_run()[run.name]
    return Tested(
        measures={name: fmean(scores.values()) for name, scores in values.items()},
        per_query=values,
        first={query: one.document_ids[0] for query, one in run.rankings.items() if len(one)},
    )


def _seconds_alone(searcher: Searcher, queries: Sequence[Query], depth: int) -> float:
    taken = []
    for query in queries[:_ALONE]:
        began = time.monotonic()
        searcher.search([query], depth, Problems("skip"))
        taken.append(time.monotonic() - began)
    return median(taken)


@lru_cache(maxsize=32)
def _judged(spec: str, split: str) -> tuple[list[Query], Judged]:
    """The queries of a split that count, and what is known of their right documents."""
    collection = open_collection(spec, Problems("skip"))
    choose_split(dict.fromkeys(collection.splits()), split, spec)
    judged = Judged.of(collection, split)
    return [query for query in collection.queries() if query.id in judged.queries], judged


class _Split:
    """The tokens of a text, in little memory."""

    def __init__(self, encoding: Any) -> None:
        self._ids: npt.NDArray[np.int32] = np.array(encoding.ids, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> list[int]:
        """The ids of the tokens."""
        found: list[int] = self._ids.tolist()
        return found


class _Remembering(Tokenizer):
    """A tokenizer that reads no text twice in one process: every cell has the same documents."""

    _known: ClassVar[dict[tuple[str, int], _Split]] = {}  # by tokenizer and hash of the text

    def split(self, texts: list[str]) -> list[Any]:
        """The tokens of each text alone."""
        keys = [(self.fingerprint, xxhash.xxh3_128_intdigest(text.encode())) for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._known}
        found = dict(zip(new, map(_Split, super().split([*new.values()])), strict=True))
        if len(self._known) + len(found) <= _REMEMBERED:
            self._known.update(found)
        return [found[key] if key in found else self._known[key] for key in keys]
