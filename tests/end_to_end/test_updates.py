"""Indexes that change: what was acknowledged is there, whatever happened to who wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.records import Query
from isthmus.retrieval.searcher import Searcher, open_searcher


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
    commands.succeed("index", corpora["first"], *exact, "--output", index)
    added = commands.succeed("add", index, corpora["more"], "--set", "block_size=64")
    assert "added 150 documents, replaced 50; the index has 300" in added.stdout
    unwanted = ("delete", index, *(f"d{number}" for number in range(10)), "nobody")
    refused = commands.run(*unwanted)
    assert refused.returncode == 2
    assert "1 of 11 ids are not in the index: 'nobody'" in refused.stderr
    deleted = commands.succeed(*unwanted, "--set", "problems=skip")
    assert "deleted 10 documents; the index has 290" in deleted.stdout
    assert "1 of 11 ids are not in the index: 'nobody'" in deleted.stderr
    commands.succeed("index", corpora["living"], *exact, "--output", anew)

    searcher, expected = (open_searcher(folder, str(model)) for folder in (index, anew))
    queries = [
        Query(str(number), json.loads(line)["text"])
        for number, line in enumerate(corpora["living"].read_text().splitlines()[:20])
    ]
    assert searcher.has_same_documents(expected)
    same_scores(searcher, expected, queries)
    (best,) = expected.search(queries[:1], 1)[0].document_ids
    assert best in commands.succeed("search", index, queries[0].text).stdout
    commands.succeed("sync", index, corpora["living"], "--compact")
    same_scores(open_searcher(index, str(model)), expected, queries)
    assert {file.name for file in anew.glob("*.npy")} == {file.name for file in index.glob("*.npy")}


def same_scores(one: Searcher, two: Searcher, queries: list[Query]) -> None:
    # Texts were encoded beside others, which may round the last bits of a vector differently.
    for mine, theirs in zip(one.search(queries, 20), two.search(queries, 20), strict=True):
        np.testing.assert_allclose(mine.scores, theirs.scores, rtol=1e-5)
    documents = [ranking.document_ids[0] for ranking in two.search(queries, 1)]
    assert [ranking.document_ids[0] for ranking in one.search(queries, 1)] == documents
    assert one.documents(documents) == two.documents(documents)
