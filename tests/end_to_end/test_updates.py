"""Indexes that change: what was acknowledged is there, whatever happened to who wrote it."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from tests.index_bytes import verify

from isthmus.config import output
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.inverted.builder import InvertedBuilder
from isthmus.indexes.manifest import CorpusOrigin, Description, EncoderOrigin, InvertedSettings
from isthmus.indexes.segments import merge_policy
from isthmus.indexes.segments.index import open_index
from isthmus.indexes.segments.writer import IndexWriter
from isthmus.records import Document, Query
from isthmus.retrieval.searcher import Searcher, open_searcher

SIZE = 12
FORK = multiprocessing.get_context("fork")


def change(folder: Path, kind: str, seed: int, said: Connection) -> None:
    """Adds, replaces and deletes for ever; says what it is about to do, and when it is done."""
    output.environment = dict  # quicker
    merge_policy._TOGETHER = 3
    generator = random.Random(seed)
    with IndexWriter(folder) as writer:
        for turn in range(10**6):
            added = {
                f"d{generator.randrange(60)}": f"{seed}-{turn}"
                for _ in range(generator.randrange(4))
            }
            deleted = [f"d{generator.randrange(60)}" for _ in range(generator.randrange(3))]
            said.send((deleted, added))
            writer.delete(deleted)
            vectors = np.random.default_rng(turn).random((len(added), SIZE)).astype(np.float32)
            rows = vectors if kind == "dense" else scipy.sparse.csr_matrix(vectors)
            if added:
                writer.add([Document(i, text) for i, text in added.items()], rows)
            writer.merge() if generator.random() < 0.1 else writer.commit()
            said.send("done")


def contents(folder: Path) -> dict[str, str]:
    store = open_index(folder).store
    documents = [store.document(row) for row in range(len(store))]
    found = {document.id: document.text for document in documents}
    assert len(found) == len(documents), "a document is there twice"
    return found


def build(folder: Path, kind: str) -> Path:
    dense = kind == "dense"
    description = Description(
        kind="dense" if dense else "inverted",
        corpus=CorpusOrigin(spec="c", fingerprint="c"),
        titles=True,
        encoder=EncoderOrigin(name="e", fingerprint="e"),
        dimension=SIZE,
        dtype="float32" if dense else None,
        inverted=None if dense else InvertedSettings(),
    )
    vectors = np.random.default_rng(0).random((30, SIZE)).astype(np.float32)
    builder: Any = DenseBuilder if dense else InvertedBuilder
    with builder(folder, description) as building:
        documents = [Document(f"d{number}", "first") for number in range(30)]
        building.add(documents, vectors if dense else scipy.sparse.csr_matrix(vectors))
        building.finish({})
    return folder


@pytest.mark.parametrize("kind", ["dense", "inverted"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, kind: str) -> None:
    folder = build(tmp_path / "index", kind)
    generator = random.Random(0)
    living = contents(folder)
    commits = 0
    for life in range(4):
        hears, said = FORK.Pipe(duplex=False)
        child = FORK.Process(target=change, args=(folder, kind, life, said))
        child.start()
        said.close()
        # Some whole commits, and then a moment that is nobody's choice.
        heard = [hears.recv() for _ in range(2 * generator.randint(1, 3))]
        time.sleep(generator.uniform(0, 0.4))
        child.kill()
        with suppress(EOFError):
            while True:
                heard.append(hears.recv())
        child.join()
        planned = living
        for message in heard:
            if message == "done":
                living = planned
                commits += 1
                continue
            deleted, added = message
            kept = {i: text for i, text in living.items() if i not in deleted}
            planned = {**kept, **added}
        verify(folder)
        found = contents(folder)
        assert found in (living, planned), f"life {life}"
        living = found
    assert commits > 4


@pytest.fixture(scope="module")
def corpora(
    write_corpus: Callable[[Path, int], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A corpus, and what was added to it: a third of it replaced, the rest new."""
    folder = tmp_path_factory.mktemp("corpora")
    lines = write_corpus(folder / "all.jsonl", 300).read_text(encoding="utf-8").splitlines()
    changed = [line.replace('"text": "', '"text": "changed ') for line in lines[100:150]]
    parts = {
        "first": lines[:150],
        "more": [*changed, *lines[150:]],
        "living": [*lines[10:100], *changed, *lines[150:]],
    }
    for name, part in parts.items():
        (folder / f"{name}.jsonl").write_text("\n".join(part) + "\n", encoding="utf-8")
    return {name: folder / f"{name}.jsonl" for name in parts}


def test_an_index_that_was_changed_is_the_index_of_what_is_left(
    commands: Any, corpora: dict[str, Path], model: Path, tmp_path: Path
) -> None:
    index, anew = tmp_path / "index", tmp_path / "anew"
    exact = ("--model", model, "--set", "encoding.backend=torch-float32")
    commands.succeed("index", *exact, "--corpus", corpora["first"], "--output", index)
    added = commands.succeed("add", index, "--corpus", corpora["more"], "--set", "block_size=64")
    assert "added 150 documents, replaced 50; the index has 300" in added.stdout
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(f"d{number}" for number in range(5)) + "\n\n", encoding="utf-8")
    arguments = [f"d{number}" for number in range(5, 10)]
    unwanted = ("delete", index, *arguments, "nobody", "--ids", ids)
    refused = commands.run(*unwanted)
    assert refused.returncode == 2
    assert "1 of 11 ids are not in the index: 'nobody'" in refused.stderr
    deleted = commands.succeed(*unwanted, "--set", "problems=skip")
    assert "deleted 10 documents; the index has 290" in deleted.stdout
    assert "1 of 11 ids are not in the index: 'nobody'" in deleted.stderr
    commands.succeed("index", *exact, "--corpus", corpora["living"], "--output", anew)

    searcher, expected = (open_searcher(folder, str(model)) for folder in (index, anew))
    queries = [
        Query(str(number), json.loads(line)["text"])
        for number, line in enumerate(corpora["living"].read_text().splitlines()[:20])
    ]
    assert searcher.has_same_documents(expected)
    same_scores(searcher, expected, queries)
    (best,) = expected.search(queries[:1], 1)[0].document_ids
    assert best in commands.succeed("search", index, queries[0].text).stdout
    merged = commands.succeed("merge", index)
    assert "one whole of 290 documents" in merged.stdout
    same_scores(open_searcher(index, str(model)), expected, queries)
    assert {file.name for file in anew.glob("*.npy")} == {file.name for file in index.glob("*.npy")}
    again = commands.run("rerun", index, "--output", tmp_path / "again")
    assert "which cannot be repeated" in again.stderr


def same_scores(one: Searcher, two: Searcher, queries: list[Query]) -> None:
    # Texts were encoded beside others, which may round the last bits of a vector differently.
    for mine, theirs in zip(one.search(queries, 20), two.search(queries, 20), strict=True):
        np.testing.assert_allclose(mine.scores, theirs.scores, rtol=1e-5)
    documents = [ranking.document_ids[0] for ranking in two.search(queries, 1)]
    assert [ranking.document_ids[0] for ranking in one.search(queries, 1)] == documents
    assert one.documents(documents) == two.documents(documents)


def test_adding_is_killed_and_goes_on(
    commands: Any,
    killed: Callable[..., Counter[str]],
    model: Path,
    corpora: dict[str, Path],
    tmp_path: Path,
) -> None:
    index = tmp_path / "index"
    commands.succeed("index", "--model", model, "--corpus", corpora["first"], "--output", index)
    before = contents(index)

    def progress() -> object:
        """What is recorded of the segment that is being made."""
        if contents(index) == before:
            files = index.glob("segments/.*.building/progress.json")
            return [file.read_text(encoding="utf-8") for file in files if file.is_file()]
        return "done"

    arguments = ["add", index, "--corpus", corpora["more"], "--set", "block_size=2"]
    hits = killed(arguments, progress, kills=5, longest=0.3)
    assert hits.total() > 1
    assert len(contents(index)) == 300
    assert not list(index.glob("segments/.*"))
    verify(index)


def test_what_cannot_be_changed_is_refused(
    commands: Any, corpora: dict[str, Path], model: Path, tmp_path: Path
) -> None:
    index = tmp_path / "bm25"
    commands.succeed("index", "--corpus", corpora["first"], "--output", index)
    empty = commands.run("delete", index)
    assert "no id of a document" in empty.stderr
    nothing = commands.run("merge", tmp_path / "nothing")
    assert "there is no index" in nothing.stderr
    dense = tmp_path / "dense"
    commands.succeed("index", "--model", model, "--corpus", corpora["first"], "--output", dense)
    other = commands.run("add", dense, "--corpus", corpora["more"], "--model", "package:nobody")
    assert other.returncode == 2
    assert contents(dense).keys() == contents(index).keys()
