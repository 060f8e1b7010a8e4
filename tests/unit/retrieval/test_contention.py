"""Two writers of one output: the second is refused before it touches anything, then it works."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.index_bytes import verify

from isthmus.config.output import only_writer, reserved
from isthmus.errors import OutputError
from isthmus.indexes import construction as building
from isthmus.retrieval.verbs.index import index
from isthmus.retrieval.verbs.search import search_file
from isthmus.retrieval.verbs.update import add, delete, merge
from isthmus.workflows.evaluate import evaluate

BUSY = "another process is writing into"


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but for locks."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.suffix != ".lock")
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.fixture
def files(corpus: str, tmp_path: Path, encoder: object) -> dict[str, Path]:
    """Indexes, queries, judgements and a run, for the verbs that read them."""
    found = {"bm25": index(corpus, tmp_path / "bm25"), "corpus": Path(corpus)}
    found["dense"] = index(corpus, tmp_path / "dense", "model")
    found["queries"] = tmp_path / "queries.tsv"
    found["queries"].write_text("q1\triver bank\nq2\tsnow\n")
    found["qrels"] = tmp_path / "qrels.tsv"
    found["qrels"].write_text("q1 0 d1 1\nq2 0 d4 1\n")
    found["run"] = tmp_path / "earlier.trec"
    found["run"].write_text("q1 Q0 d1 1 1.0 run\nq2 Q0 d4 1 1.0 run\n")
    found["more"] = tmp_path / "more.jsonl"
    found["more"].write_text('{"_id": "d9", "text": "another river"}\n')
    return found


MEASURED = {"bootstrap_samples": 10}

# What each verb writes to, and whether the lock lies beside it.
VERBS: dict[str, tuple[str, bool, Callable[[dict[str, Path], Path], object]]] = {
    "index": ("new", True, lambda f, o: index(str(f["corpus"]), o)),
    "index of vectors": ("new", True, lambda f, o: index(str(f["corpus"]), o, "model")),
    "search": ("new.trec", True, lambda f, o: search_file(f["bm25"], f["queries"], o)),
    "evaluate": (
        "new", False,
        lambda f, o: evaluate(f["qrels"], f["run"], measures="RR@10", output=o, settings=MEASURED),
    ),
    "add": ("dense", False, lambda f, o: add(o, str(f["more"]))),
    "delete": ("dense", False, lambda f, o: delete(o, ["d1"])),
    "merge": ("dense", False, lambda f, o: merge(o)),
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.usefixtures("encoder")
def test_a_verb_is_refused_while_another_writes(
    verb: str, files: dict[str, Path], tmp_path: Path
) -> None:
    name, beside, run = VERBS[verb]
    output = tmp_path / name
    with reserved(output) if beside else only_writer(output):
        before = snapshot(tmp_path)
        with pytest.raises(OutputError, match=BUSY) as caught:
            run(files, output)
        assert str(output) in caught.value.what
        assert snapshot(tmp_path) == before, "nothing was touched"
    run(files, output)
    assert snapshot(tmp_path) != before or verb == "merge"
    assert not list(tmp_path.rglob("*.lock"))


def test_what_came_meanwhile_is_not_replaced(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, output = building.write_manifest, tmp_path / "index"

    def meanwhile(folder: Path, *rest: Any) -> None:
        plain(folder, *rest)
        output.mkdir()
        (output / "thesis.tex").write_text("years of work")

    monkeypatch.setattr(building, "write_manifest", meanwhile)
    with pytest.raises(OutputError, match="was filled by something else"):
        index(corpus, output)
    assert [file.name for file in output.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("dangling", [True, False])
def test_an_index_through_a_link_lies_where_it_leads(
    dangling: bool, corpus: str, tmp_path: Path, encoder: object
) -> None:
    disk = tmp_path / "disk"
    for model in ("bm25", "model"):
        link, place = tmp_path / f"link-{model}", disk / f"index-{model}"
        link.symlink_to(place)
        if not dangling:
            place.mkdir(parents=True)
        index(corpus, link, model)
        assert link.is_symlink()
        assert verify(place).documents == 5
        index(corpus, link, model)
    assert sorted(os.listdir(disk)) == ["index-bm25", "index-model"]
