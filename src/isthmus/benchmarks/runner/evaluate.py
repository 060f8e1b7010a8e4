"""What the test queries of every collection say about one retriever."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from isthmus.benchmarks.protocol.plan import Step
from isthmus.benchmarks.protocol.runs import Tested
from isthmus.benchmarks.protocol.settings import Protocol
from isthmus.collections import Problems, open_collection
from isthmus.encoders import (
    DenseEncoder,
    DenseSettings,
    MultiVectorEncoder,
    SparseEncoder,
    SparseSettings,
    load_encoder,
)
from isthmus.encoders.encoder import VectorSettings
from isthmus.encoders.loader import Given
from isthmus.encoders.model_settings import known_settings
from isthmus.evaluation.query_scores import query_scores
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import read_manifest
from isthmus.records import Query
from isthmus.retrieval.index import index
from isthmus.retrieval.searcher import Searcher
from isthmus.workflows.systems import judged_queries, run_of

_ALONE = 20  # queries that are timed one by one


def evaluate(
    model: str, step: Step, protocol: Protocol, folder: Path
) -> tuple[dict[str, Tested], dict[str, float]]:
    """The tests of a model by collection, and what searching the first of them costs.

    `folder` holds one index after the other, and is gone at the end.
    """
    encoder = _encoder(model, step.encoder)
    parameters = sum(weight.numel() for weight in encoder.backbone.parameters())
    costs: dict[str, float] = {"parameters": float(parameters)}
    found: dict[str, Tested] = {}
    indexed, seconds, skipped = "", 0.0, Problems("skip")
    for number, test in enumerate(step.tests):
        if test.spec != indexed:  # else another split of the same documents
            shutil.rmtree(folder, ignore_errors=True)
            began = time.monotonic()
            how = {"bm25": False, "tokens": False, "passages": False, "problems": "skip"}
            index(test.spec, folder, encoder, settings=how)
            indexed, seconds = test.spec, time.monotonic() - began
            (field,) = read_manifest(folder).fields
            searcher = Searcher(Index.open(folder), {field: encoder})
        queries, judged = judged_queries(open_collection(test.spec, skipped), test.split)
        run = run_of(step.name, searcher, queries, protocol.depth, skipped)
        values = query_scores([run], protocol.measures, judged)[step.name]
        found[test.collection] = Tested(
            measures={name: fmean(scores.values()) for name, scores in values.items()},
            per_query=values,
        )
        if number == 0:
            costs |= {
                "index_seconds": seconds,
                "index_bytes": float(sum(f.stat().st_size for f in folder.rglob("*"))),
                "query_seconds": _seconds_alone(searcher, queries, protocol.depth),
            }
    shutil.rmtree(folder, ignore_errors=True)
    return found, costs


def _encoder(model: str, made: str) -> DenseEncoder | SparseEncoder:
    """The model as it was made; where it was made for another type of vectors, as that type.

    LexMAE, say, leaves a model that is described as sparse: in a column of dense retrieval its
    [CLS] is read, like those of others.
    """
    types: dict[str, type[DenseSettings | SparseSettings]] = {
        "dense": DenseSettings, "sparse": SparseSettings,
    }  # fmt: skip
    before = known_settings(model) if made else None
    given: Given = None
    if made and not isinstance(before, types[made]):
        given = {"encoder": made}
        if before is not None:
            kept = before.model_dump(include={*VectorSettings.model_fields})
            given = types[made].parse(kept, where=model)
    encoder = load_encoder(model, given)
    assert not isinstance(encoder, MultiVectorEncoder), "no model here has a vector for each token"
    return encoder


def _seconds_alone(searcher: Searcher, queries: Sequence[Query], depth: int) -> float:
    taken = []
    for query in queries[:_ALONE]:
        began = time.monotonic()
        searcher.search([query], depth, Problems("skip"))
        taken.append(time.monotonic() - began)
    return median(taken)
