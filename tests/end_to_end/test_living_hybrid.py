"""Several indexes in one folder: searched together, changed together, whatever kills the writer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus.indexes.segments.index import open_index
from isthmus.records import Document, Query
from isthmus.retrieval.hybrid_folder import open_hybrid, read_hybrid
from isthmus.retrieval.verbs.update import open_writer

WITHDRAWN = [f"d{number}" for number in range(10)]


def contents(folder: Path) -> dict[str, tuple[str, str]]:
    """The documents that every index of a hybrid has; they must be those of all."""
    hybrid = read_hybrid(folder)
    found = []
    for place in hybrid.folders(folder):
        store = open_index(place).store
        documents = (store.document(row) for row in range(len(store)))
        found.append({one.id: (one.title, one.text) for one in documents})
    assert all(one == found[0] for one in found), "indexes at different states of the corpus"
    return found[0]


@pytest.fixture(scope="module")
def corpora(
    write_corpus: Callable[[Path, int], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A corpus, what is added to it (a third of it changed, the rest new), and what is left."""
    folder = tmp_path_factory.mktemp("corpora")
    lines = write_corpus(folder / "all.jsonl", 150).read_text(encoding="utf-8").splitlines()
    changed = [line.replace('"text": "', '"text": "changed ') for line in lines[60:80]]
    parts = {
        "first": lines[:80],
        "more": [*changed, *lines[80:]],
        "living": [*lines[10:60], *changed, *lines[80:]],
    }
    for name, part in parts.items():
        (folder / f"{name}.jsonl").write_text("\n".join(part) + "\n", encoding="utf-8")
    return {name: folder / f"{name}.jsonl" for name in parts}


def test_indexes_of_one_folder_change_together(
    commands: Any, corpora: dict[str, Path], model: Path, tmp_path: Path
) -> None:
    index, anew = tmp_path / "index", tmp_path / "anew"
    build = ("index", corpora["first"], "-m", "bm25", "-m", model, "--output", index)
    commands.succeed(*build)
    assert commands.succeed(*build).stderr.count("already holds this index") == 2
    added = commands.succeed("add", index, corpora["more"])
    assert "added 70 documents, replaced 20; the index has 150" in added.stdout
    refused = commands.run("delete", index, *WITHDRAWN, "nobody")
    assert refused.returncode == 2
    assert len(contents(index)) == 150
    assert not list(index.glob("*/*.json")), "nothing is left of what was refused"
    deleted = commands.succeed("delete", index, *WITHDRAWN)
    assert "deleted 10 documents; the index has 140" in deleted.stdout
    kept = {json.loads(line)["_id"] for line in corpora["living"].read_text().splitlines()}
    assert contents(index).keys() == kept

    commands.succeed("index", corpora["living"], "-m", model, "-m", "bm25", "--output", anew)
    queries = [Query(str(n), line) for n, line in enumerate(["ba doke", "changed", "lina"])]

    def best(folder: Path) -> list[Any]:
        return [one.document_ids[:5] for one in open_hybrid(folder).search(queries, 20)]

    assert best(index) == best(anew)
    commands.succeed("sync", index, corpora["living"], "--compact")
    assert best(index) == best(anew)
    assert contents(index).keys() == kept
    assert [one.name for one in index.iterdir() if one.is_dir()] == ["000004"]
    shown = commands.succeed("search", index, "changed", "--set", "fusion=reciprocal_rank")
    assert "changed" in shown.stdout
    words = json.loads(commands.succeed("search", index, "ba", "--use", "bm25", "--json").stdout)
    fused = json.loads(commands.succeed("search", index, "ba", "--json").stdout)
    assert words["hits"][0]["score"] != fused["hits"][0]["score"]
    assert "has no retriever 'bm52'" in commands.run("search", index, "ba", "--use", "bm52").stderr
    other = commands.run("index", corpora["more"], "-m", "bm25", "-m", model, "--output", index)
    assert "already holds another index" in other.stderr
    commands.succeed(
        "index", corpora["more"], "--output", index, "--overwrite", "-m", "bm25", "-m", model
    )
    assert len(contents(index)) == 90
    (index / "notes.txt").write_text("mine", encoding="utf-8")
    mine = commands.run(*build, "--overwrite")
    assert mine.returncode == 2
    assert (index / "notes.txt").is_file()


def test_tuned_weights_stay_with_the_folder(
    commands: Any, collection: Path, model: Path, corpora: dict[str, Path], tmp_path: Path
) -> None:
    index, anew = tmp_path / "index", tmp_path / "anew"
    for folder in (index, anew):
        commands.succeed("index", collection, "-m", "bm25", "-m", model, "--output", folder)
    judged = ("--queries", collection, "--split", "train")
    how = ("--split", "train", "--set", "steps=4", "--set", "candidates=50")
    tuned = json.loads(commands.succeed("tune", index, collection, *how, "--json").stdout)
    weights = list(tuned["weights"].values())
    assert list(tuned["weights"]) == isthmus.open_index(index).names
    by_hand = ("--set", f"weights={weights}", "--set", "candidates=50", "--set", "tag=x")
    commands.succeed("search", anew, *judged, "--output", tmp_path / "hand.trec", *by_hand)
    commands.succeed("search", index, *judged, "--output", tmp_path / "own.trec", "--set", "tag=x")
    assert (tmp_path / "own.trec").read_text() == (tmp_path / "hand.trec").read_text()
    qrels = collection / "qrels" / "train.tsv"
    report = isthmus.evaluate(qrels, tmp_path / "own.trec", measures="nDCG@10")
    assert list(report.means["nDCG@10"].values()) == pytest.approx([tuned["value"]], abs=1e-9)
    commands.succeed("delete", index, "d399")
    assert read_hybrid(index).combination.weights == weights, "a change leaves them"


def test_a_writer_in_python(corpora: dict[str, Path], model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    isthmus.index(corpora["first"], folder, [str(model), "bm25"])
    before = contents(folder)
    with open_writer(folder) as writer:
        writer.add([Document("new", "a text")])
    assert contents(folder) == before, "nothing counts without a commit"
    with open_writer(folder) as writer:
        writer.add([Document("new", "a text"), Document("d3", "another")])
        writer.delete(["d1"])
        assert writer.commit().documents == 80
        with pytest.raises(isthmus.IsthmusError, match="another"):
            open_writer(folder)
        opened = open_hybrid(folder)
        writer.delete(["new"])
        writer.merge()
        assert opened.documents(["new"])[0].text == "a text", "a reader keeps what it opened"
    after = {**before, "d3": ("", "another")}
    del after["d1"]
    assert contents(folder) == after
