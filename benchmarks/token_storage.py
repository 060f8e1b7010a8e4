"""How token vectors are stored, and how many documents they are compared with: what it costs.

    python benchmarks/token_storage.py MODEL [MODEL ...] [--collections NAME ...] [--jobs N]

For bm25, dense and tokens fused, nDCG@10 over the test queries of small shared collections, with
token vectors as the encoder gives them, pooled, in 2, 4 and 8 bits, and as principal components in
8 bits, which is what others store. Then with 10 to 100 documents compared. Bytes are those of a
token of the text.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from views import DATA

import isthmus
from isthmus.collections import Problems
from isthmus.encoders import load_encoder
from isthmus.evaluation.measures import per_query
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import TokensField
from isthmus.indexes.ragged import Ragged
from isthmus.indexes.tokens.codes import code_bytes, encoded, levels_of, pooled, rotation
from isthmus.records import Ranking, Run
from isthmus.retrieval.fusion import fuse, weighted_sum
from isthmus.retrieval.searcher import open_searcher

_SMALL = ("cacm", "cisi", "cranfield", "medline", "npl", "scifact")
_DEPTHS = (10, 20, 30, 50, 100)
_DEPTH = 30
Stored = tuple[Ragged, float]  # the vectors as they are compared, and bytes of a token
Way = Callable[[Ragged, Any], Stored]


def main() -> None:
    """Prints a row per way of storing, and per depth."""
    options = argparse.ArgumentParser()
    options.add_argument("models", nargs="+")
    options.add_argument("--collections", nargs="*", default=_SMALL)
    options.add_argument("--jobs", type=int, default=1)
    chosen = options.parse_args()
    jobs = [(name, model) for model in chosen.models for name in chosen.collections]
    with ProcessPoolExecutor(chosen.jobs, get_context("spawn")) as pool:
        found = dict(zip(jobs, pool.map(_measured, *zip(*jobs, strict=True)), strict=True))
    for model in chosen.models:
        of_model = [values for (_, one), values in found.items() if one == model]
        print(f"\n| {Path(model).name}: nDCG@10, mean of {len(of_model)} | bytes | tokens alone |"
              " fused |\n|---|--:|--:|--:|")  # fmt: skip
        for way in of_model[0]:
            columns = zip(*(values[way] for values in of_model), strict=True)
            size, alone, fused = (fmean(column) for column in columns)
            print(f"| {way} | {size:.0f} | {alone:.4f} | {fused:.4f} |")


def _ways() -> dict[str, Way]:
    def coded(pooling: int, bits: int) -> Way:
        def store(vectors: Ragged, about: TokensField) -> Stored:
            centre = np.array(about.centre, dtype=np.float32)
            fewer = pooled(vectors, pooling)
            codes, scales = encoded(fewer.values, centre, bits)
            width, step = about.dimension, {2: 0.9957, 4: 0.3352}[bits]
            levels = levels_of(codes, width, bits) - (2**bits - 1) / 2
            turned = levels * (step * scales.astype(np.float32))[:, None]
            back = turned @ rotation(width).T + centre
            size = (code_bytes(width, bits) + 2) * len(fewer.values) / len(vectors.values)
            return Ragged(back, fewer.starts), size

        return store

    def components(count: int, pooling: int) -> Way:
        def store(vectors: Ragged, _: TokensField) -> Stored:
            fewer = pooled(vectors, pooling)
            _, basis = np.linalg.eigh(fewer.values.T @ fewer.values)
            kept = fewer.values @ basis[:, -count:]
            scale = np.abs(kept).max(axis=1, keepdims=True) / 127
            back = (np.round(kept / np.maximum(scale, 1e-9)) * scale) @ basis[:, -count:].T
            return Ragged(back, fewer.starts), (count + 2) * len(back) / len(vectors.values)

        return store

    ways: dict[str, Way] = {
        "as they are, float32": lambda vectors, _: (vectors, 4.0 * vectors.values.shape[1])
    }
    for pooling in (2, 3, 4):
        ways[f"means of {pooling}, float32"] = lambda vectors, _, p=pooling: (
            pooled(vectors, p), 4 * vectors.values.shape[1] / p)  # fmt: skip
    for pooling, bits in ((1, 4), (1, 2), (2, 4), (2, 2), (3, 2), (4, 2)):
        ways[f"means of {pooling}, {bits} bits"] = coded(pooling, bits)
    for count, pooling in ((128, 1), (128, 2), (64, 1)):
        ways[f"{count} components in 8 bits, means of {pooling}"] = components(count, pooling)
    return ways


def _measured(name: str, model: str) -> dict[str, tuple[float, float, float]]:
    collection = str(DATA / "collections" / name)
    source = isthmus.open_collection(collection)
    judged = source.judgements("test")
    queries = [query for query in source.queries() if query.id in judged]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "index")
        isthmus.index(collection, folder, model, language="english", settings={"problems": "skip"})
        searcher = open_searcher(folder, fusion={"weights": {"tokens": 0.0}})
        found = searcher.components(queries, 1000, Problems("skip"))
        index = Index.open(folder)
        encoder = load_encoder(model).with_tokens()
        passages = [one for batch in index.batches(["dense"]) for one in batch.rows]
        vectors = encoder.encode_documents(passages).tokens.vectors
        vectors = Ragged(vectors.values.astype(np.float32), vectors.starts)
        asked = encoder.encode_queries([query.text for query in queries])
        weighed = index.asked("tokens", asked)
        about = index.manifest.field("tokens")
        of_document: dict[str, list[int]] = {}
        for row, one in enumerate(passages):
            of_document.setdefault(one.id.rpartition("#")[0], []).append(row)

        def compared(stored: Ragged, place: int, ids: tuple[str, ...]) -> dict[str, float]:
            tokens, weights = weighed.vectors.row(place), weighed.pieces.row(place)
            scores = {}
            for document in ids:
                each = [stored.row(row) for row in of_document[document]]
                near = [(one @ tokens.T).max(0) @ weights for one in each if len(one)]
                scores[document] = float(max(near, default=-1.0))
            return scores

        def values(stored: Ragged, depth: int, alone: bool) -> float:
            rankings = {}
            for place, query in enumerate(queries):
                both = [found["bm25"][place], found["dense"][place]]
                first = fuse(both, [1.0, 1.0], weighted_sum, depth)
                scores = compared(stored, place, first.document_ids)
                ranking = Ranking.sorted(query.id, scores)
                if not alone:
                    ranking = fuse([*both, ranking], [1.0] * 3, weighted_sum, 10)
                rankings[query.id] = ranking
            (values,) = per_query(Run("run", rankings), judged, ["nDCG@10"]).values()
            return fmean(values.values())

        rows = {}
        for way, store in _ways().items():
            stored, size = store(vectors, about)
            rows[way] = size, values(stored, 100, True), values(stored, _DEPTH, False)
        full = _ways()["as they are, float32"](vectors, about)[0]
        for depth in _DEPTHS:
            alone, fused = values(full, depth, True), values(full, depth, False)
            rows[f"as they are, {depth} documents compared"] = (
                vectors.values.shape[1] * 4.0,
                alone,
                fused,
            )
    print(f"{name}, {Path(model).name}", flush=True)
    return rows


if __name__ == "__main__":
    main()
