"""Mutated files and settings: every reader gives its records or raises the project's own errors.

`ISTHMUS_FUZZ_SECONDS=300 pytest tests/property/test_hostile_readers.py` looks for longer.
"""

from __future__ import annotations

import gzip
import lzma
import os
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from isthmus.collections import (
    Problems,
    open_collection,
    open_corpus,
    read_judgements,
    read_queries,
    read_run,
)
from isthmus.collections.sources import Package
from isthmus.config import resolve
from isthmus.config.recipes import find_recipe
from isthmus.errors import IsthmusError
from isthmus.retrieval.verbs.index import IndexSettings
from isthmus.retrieval.verbs.search import SearchSettings

SECONDS = float(os.environ.get("ISTHMUS_FUZZ_SECONDS", "0.5"))
LINE_LIMIT = 20_000

CORPUS = b'{"_id": "d1", "title": "T", "text": "one text"}\n{"id": 2, "contents": "caf\xc3\xa9"}\n'
QUERIES = b'{"_id": "q1", "text": "a query"}\n{"query_id": "q2", "query": "x"}\n'
JUDGEMENTS = b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\t2\t0\n"
TREC = b"q1 0 d1 2\nq1 0 d2 -1\nq2 0 d1 0\n"
RUN = b"q1 Q0 d1 1 12.5 tag\nq1 Q0 d2 2 1e-3 tag\nq2 Q0 d1 1 -0.5 tag\n"
TABS = b"1\tsome text\n2\tother text\n"
MARKDOWN = b"---\n\n## A title ##\n\n```\n# code\n```\ntext & more\n"
HTML = b"<html><title>A &amp; B</title><style>x</style><p>One <b>b</b><!-- c --><br>&#65;</html>"
RECIPE = (
    b"verb: index\nsummary: x\npaper: 'A, 2020: b'\nsettings:\n  texts: false\n  block_size: 12\n"
    b"  bm25: {k1: 1.2, b: 0.75}\n  encoding: {batch_size: 4}\n"
)
SOURCE = (
    b'"""A module."""\n__all__ = ["f"]\nfrom . import other as o\nfrom .x import *\n'
    b'def f(a: int = 1) -> int:\n    """Documented, in several words."""\n    return -a\n'
    b'class C:\n    """Class."""\n    def g(self):\n        """Method."""\nif 1:\n    import os\n'
)
OVERRIDES = (
    b"block_size=3", b"bm25.k1=1e-1", b"problems=skip", b"encoding={batch_size: 2}", b"depth=5",
    b"rerank.candidates=7", b"hnsw.effort=9", b"line_limit=100", b"hybrid=[a, b]",
)  # fmt: skip
NASTY = (
    b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"\r", b"\n", b"\t", b" ",
    b'"', b"{", b"}", b"[", b"]", b":", b",", b"9" * 4400, b"1_0", "１".encode(),
    "\u0661".encode(), b"-", b"+", b"1e999", b"NaN", b"Infinity", b"null", b"true", b"[" * 1500,
    b'{"a":' * 1500, b"x" * 30_000, b"&a ", b"*a", b"<<: ", b"!!int ",
    b"!!python/name:os.system ", b"2024-13-45", b"0x", b"1:2:3", b"---\n", b"? ", b"| ",
    b"<![CDATA[", b"<!", b"<?", b"</", b"&#x110000;", b"&#xd800;", b"&#99999999999;", b"<title>",
    b"<script>", b"# ", b"```", "\u2028".encode(), "\u00a0".encode(), b"\xef\xbb\xbf",
    b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"(" * 300, b"-" * 5000,
    b"elif 1: pass\n" * 1500, b"\x1b[31m", b"_id", b"text", b".", b"..", b"=", b"%", b"~", b"'",
)  # fmt: skip
PACK: tuple[Callable[[bytes], bytes], ...] = (
    gzip.compress,
    lambda content: lzma.compress(content, preset=0),
    zstandard.ZstdCompressor(level=1).compress,
)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """The content after a few changes, now and then compressed and changed again."""
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        place = draw.randrange(len(content) + 1)
        end = min(len(content), place + draw.choice((0, 1, 1, 4, 30)))
        kind = draw.randrange(6)
        if kind == 0:
            content = content[:place] + draw.choice(NASTY) + content[end:]
        elif kind == 1:
            content = content[:place] + content[end:]
        elif kind == 2:
            content = content[:place] + content[place:end] * draw.choice((2, 3, 50)) + content[end:]
        elif kind == 3 and place < len(content):
            flipped = content[place] ^ (1 << draw.randrange(8))
            content = content[:place] + bytes([flipped]) + content[place + 1 :]
        elif kind == 4:
            content = content[:place]
        else:
            other = draw.randrange(len(content) + 1)
            content = content[:place] + content[other:]
    if draw.random() < 0.1:
        packed = draw.choice(PACK)(content)
        return mutated(packed, draw) if draw.random() < 0.5 else packed
    return content


def documents(spec: str, problems: Problems) -> None:
    corpus = open_corpus(spec, problems)
    assert corpus.fingerprint()
    for document in corpus.documents():
        assert f"{document.id}{document.contents()}".encode() is not None


def collection(spec: str, problems: Problems) -> None:
    documents(spec, problems)
    opened = open_collection(spec, problems)
    for query in opened.queries():
        assert f"{query.id}{query.text}".encode() is not None
    for split in opened.splits():
        for judged in opened.judgements(split).values():
            assert all(abs(grade) < 2**31 for grade in judged.values())


def scores(file: str, problems: Problems) -> None:
    from isthmus.finetuning.score_files import read_scores

    assert all(abs(score) < 4e38 for _, _, score in read_scores(Path(file), problems))


def package(file: str, problems: Problems) -> None:
    found = Package({"p": Path(file), "p.x": Path(file)}, problems)
    assert all(name and text for name, text in found.documentation())


def recipe(file: str, problems: Problems) -> None:
    IndexSettings.parse(find_recipe(file, "index").settings, file)


def overrides(file: str, problems: Problems) -> None:
    text = Path(file).read_text(encoding="utf-8", errors="surrogateescape")
    for settings, verb in ((IndexSettings, "index"), (SearchSettings, "search")):
        settings.parse(resolve(verb, overrides=[text]), "--set")


def check(call: Callable[[str, Problems], Any], argument: str) -> None:
    """Reads in both ways; the messages can be written to any file."""
    for action in ("refuse", "skip"):
        problems = Problems(action, LINE_LIMIT)  # type: ignore[arg-type]
        try:
            call(argument, problems)
        except IsthmusError as error:
            str(error).encode()
        problems.summary().encode()


def fuzz(name: str, folder: Path, files: dict[str, bytes], call: Any, spec: str) -> None:
    draw = random.Random(f"{name} {os.environ.get('ISTHMUS_FUZZ_SEED', 0)}")
    for file, content in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
    check(call, spec)
    ends = time.monotonic() + SECONDS
    tried = 0
    while time.monotonic() < ends:
        changed = draw.choice(sorted(files))
        content = mutated(files[changed], draw)
        (folder / changed).write_bytes(content)
        try:
            check(call, spec)
        except BaseException:
            print(f"after {tried:,} others, {changed}:\n{content!r}"[:5_000])
            raise
        (folder / changed).write_bytes(files[changed])
        tried += 1
    print(f"{name}: {tried:,} inputs")


READERS: dict[str, tuple[dict[str, bytes], Any, str]] = {
    "jsonl": ({"c.jsonl": CORPUS}, documents, "jsonl:{}/c.jsonl"),
    "beir": (
        {"corpus.jsonl": CORPUS, "queries.jsonl": QUERIES, "qrels/test.tsv": JUDGEMENTS},
        collection,
        "beir:{}",
    ),
    "msmarco": (
        {"collection.tsv": TABS, "queries.dev.tsv": TABS, "qrels.dev.tsv": b"1\t0\t2\t1\n"},
        collection,
        "msmarco:{}",
    ),
    "folder": ({"a.txt": b"text", "b.md": MARKDOWN, "c/d.html": HTML}, documents, "folder:{}"),
    "queries": ({"q.jsonl": QUERIES}, read_queries, "{}/q.jsonl"),
    "tab queries": ({"q.tsv": TABS}, read_queries, "{}/q.tsv"),
    "judgements": ({"q.trec": TREC}, read_judgements, "{}/q.trec"),
    "run": ({"r.trec": RUN}, read_run, "{}/r.trec"),
    "scores": ({"s.tsv": RUN}, scores, "{}/s.tsv"),
    "source": ({"m.py": SOURCE}, package, "{}/m.py"),
    "recipe": ({"r.yaml": RECIPE}, recipe, "{}/r.yaml"),
}


@pytest.mark.parametrize("name", READERS)
def test_nothing_but_our_own_errors(name: str, tmp_path: Path) -> None:
    files, call, spec = READERS[name]
    fuzz(name, tmp_path, files, call, spec.format(tmp_path))


@pytest.mark.parametrize("given", OVERRIDES, ids=lambda text: text.decode())
def test_nothing_but_our_own_errors_of_overrides(given: bytes, tmp_path: Path) -> None:
    fuzz(given.decode(), tmp_path, {"o": given}, overrides, str(tmp_path / "o"))


def files_of(folder: Path) -> Iterable[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file())


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "saved"])
def test_nothing_but_our_own_errors_of_data_sets(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    folder = tmp_path / "set"
    folder.mkdir()
    rows = datasets.Dataset.from_dict({"_id": ["a", "b"], "text": ["one text", "two"]})
    if kind == "jsonl":
        (folder / "train.jsonl").write_bytes(CORPUS)
    elif kind == "parquet":
        rows.to_parquet(str(folder / "train.parquet"))
    else:
        rows.save_to_disk(str(folder))
    files = {str(file.relative_to(folder)): file.read_bytes() for file in files_of(folder)}
    fuzz(f"data set {kind}", folder, files, documents, f"hf:{folder}")
