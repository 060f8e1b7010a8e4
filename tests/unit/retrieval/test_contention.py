"""Two writers of one output: the second is refused before it touches anything, then it works."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.index_bytes import verify
from typer.testing import CliRunner

from isthmus.cli import app
from isthmus.config.output import only_writer, reserved
from isthmus.errors import InputError, OutputError
from isthmus.evaluation import EvaluationSettings, evaluate
from isthmus.indexes import construction as building
from isthmus.indexes.dense.builder import DenseBuilder
from isthmus.indexes.dense.hnsw import HnswSettings
from isthmus.indexes.documents import DocumentWriter
from isthmus.indexes.manifest import workplace
from isthmus.retrieval.hnsw import add_hnsw
from isthmus.retrieval.searcher import open_searcher
from isthmus.retrieval.verbs.export import export
from isthmus.retrieval.verbs.index import IndexSettings, index
from isthmus.retrieval.verbs.search import search
from isthmus.retrieval.verbs.sparsify import SparsifySettings, sparsify
from isthmus.retrieval.verbs.tune import tune
from isthmus.retrieval.verbs.update import add, delete, merge

BUSY = "another process is writing into"
FORK = multiprocessing.get_context("fork")


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
    found["ids"] = tmp_path / "ids"
    found["ids"].write_text("d1\n")
    found["more"] = tmp_path / "more.jsonl"
    found["more"].write_text('{"_id": "d9", "text": "another river"}\n')
    return found


MEASURED = EvaluationSettings(measures=("RR@10",), bootstrap_samples=10)

# What each verb writes to, and whether the lock lies beside it.
VERBS: dict[str, tuple[str, bool, Callable[[dict[str, Path], Path], object]]] = {
    "index": ("new", True, lambda f, o: index(str(f["corpus"]), o)),
    "index of vectors": ("new", True, lambda f, o: index(str(f["corpus"]), o, "model")),
    "search": ("new.trec", True, lambda f, o: search(f["bm25"], None, f["queries"], o)),
    "evaluate": (
        "new", False,
        lambda f, o: evaluate([f["run"]], f["qrels"], settings=MEASURED, output=o),
    ),
    "tune": ("new", False, lambda f, o: tune([f["bm25"], f["dense"]], f["queries"], f["qrels"], o)),
    "add": ("dense", False, lambda f, o: add(o, str(f["more"]))),
    "delete": ("dense", False, lambda f, o: delete(o, ids=f["ids"])),
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


def test_sparsify_is_refused_while_another_writes(
    files: dict[str, Path], tmp_path: Path, sparse_encoder: object
) -> None:
    given = {key: str(files[key]) for key in ("corpus", "queries", "qrels")}
    run = lambda: sparsify("model", **given, output=tmp_path / "new", settings=settings)  # noqa: E731
    settings = SparsifySettings(terms=[2])
    with only_writer(tmp_path / "new"), pytest.raises(OutputError, match=BUSY):
        run()
    assert run().folder == tmp_path / "new"


def test_parity_is_refused_before_it_asks(files: dict[str, Path], tmp_path: Path) -> None:
    output = tmp_path / "parity.tsv"
    with reserved(output), pytest.raises(OutputError, match=BUSY):
        export(files["dense"], output, verify="nowhere.db", queries=files["queries"])


def test_a_graph_is_refused_while_documents_are_added(files: dict[str, Path]) -> None:
    with only_writer(files["dense"]), pytest.raises(OutputError, match=BUSY):
        add_hnsw(files["dense"], "model", HnswSettings())


@pytest.mark.parametrize(
    ("beside", "arguments"),
    [
        (False, ["pretrain", "--recipe", "mlm", "--init", "tiny", "--corpus", "CORPUS"]),
        (False, ["quickstart"]),
        (False, ["finetune", "--model", "MODEL", "--collection", "COLLECTION"]),
        (True, ["masking", "--corpus", "CORPUS", "--model", "nowhere"]),
        (True, ["negatives", "--collection", "nowhere", "--model", "nowhere"]),
    ],
)
def test_long_verbs_are_refused_at_once(
    beside: bool, arguments: list[str], corpus: str, tmp_path: Path
) -> None:
    output, collection, model = (tmp_path / name for name in ("new", "collection", "model"))
    (collection / "qrels").mkdir(parents=True)
    shutil.copy(corpus, collection / "corpus.jsonl")
    (collection / "queries.jsonl").write_text('{"_id": "q1", "text": "river bank"}\n')
    (collection / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "bert"}')
    given = {"CORPUS": corpus, "COLLECTION": f"beir:{collection}", "MODEL": str(model)}
    words = [given.get(word, word) for word in arguments]
    with reserved(output) if beside else only_writer(output):
        result = CliRunner().invoke(app, [*words, "--output", str(output)])
    assert isinstance(result.exception, OutputError), result.output
    assert BUSY in result.exception.what
    assert not output.exists()


def _index(corpus: str, output: Path, paused: Any, go: Any) -> None:
    """Builds an index and waits in the middle of it."""
    plain = DocumentWriter.finish

    def finish(self: DocumentWriter) -> None:
        paused.set()
        assert go.wait(60)
        plain(self)

    DocumentWriter.finish = finish  # type: ignore[method-assign]
    index(corpus, output)


def test_a_second_process_cannot_spoil_an_index_that_is_being_built(
    corpus: str, tmp_path: Path
) -> None:
    """It used to empty the workplace of the first; both said that they had built the index."""
    output, paused, go = tmp_path / "index", FORK.Event(), FORK.Event()
    first = FORK.Process(target=_index, args=(corpus, output, paused, go))
    first.start()
    assert paused.wait(60)
    with pytest.raises(OutputError, match=BUSY):
        index(corpus, output)
    with pytest.raises(InputError, match="is not complete"):
        open_searcher(output)
    go.set()
    first.join()
    assert first.exitcode == 0
    assert verify(output).documents == 5
    assert index(corpus, output) == output  # which is there already
    assert sorted(os.listdir(tmp_path)) == ["corpus.jsonl", "index"]


def test_the_lock_of_a_process_that_was_killed_is_free(corpus: str, tmp_path: Path) -> None:
    output, paused = tmp_path / "index", FORK.Event()
    first = FORK.Process(target=_index, args=(corpus, output, paused, FORK.Event()))
    first.start()
    assert paused.wait(60)
    first.kill()
    first.join()
    assert (tmp_path / ".index.writer.lock").exists()
    with pytest.raises(InputError, match="is not complete"):
        open_searcher(output)
    index(corpus, output)
    assert sorted(os.listdir(tmp_path)) == ["corpus.jsonl", "index"]


@pytest.mark.parametrize("loss", ["documents.arrow", "manifest.json", "order.npy"])
def test_what_is_not_whole_is_not_published(
    loss: str, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = building.write_manifest

    def lose(folder: Path, *rest: Any) -> None:
        if loss != "manifest.json":
            (folder / loss).unlink()
        plain(folder, *rest)
        (folder / loss).unlink(missing_ok=True)

    monkeypatch.setattr(building, "write_manifest", lose)
    with pytest.raises(OutputError, match="is not complete"):
        index(corpus, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_a_workplace_that_was_taken_away_is_not_published(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = building.write_manifest

    def stolen(folder: Path, *rest: Any) -> None:
        plain(folder, *rest)
        (tmp_path / ".index.writer.lock").unlink()

    monkeypatch.setattr(building, "write_manifest", stolen)
    with pytest.raises(OutputError, match="removed or replaced while it was being written"):
        index(corpus, tmp_path / "index")
    assert not (tmp_path / "index").exists()


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
    for model in (None, "model"):
        link, place = tmp_path / f"link-{model}", disk / f"index-{model}"
        link.symlink_to(place)
        if not dangling:
            place.mkdir(parents=True)
        index(corpus, link, model)
        assert link.is_symlink()
        assert verify(place).documents == 5
        index(corpus, link, model)
    assert sorted(os.listdir(disk)) == ["index-None", "index-model"]


def test_a_run_file_through_a_link(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "link.trec").symlink_to(tmp_path / "run.trec")
    search(files["bm25"], None, files["queries"], tmp_path / "link.trec")
    assert (tmp_path / "link.trec").is_symlink()
    assert (tmp_path / "run.trec").read_text().startswith("q1 Q0 ")


@pytest.mark.parametrize("model", [None, "model"])
def test_after_bad_input_nothing_is_said_to_be_interrupted(
    model: str | None, corpus: str, tmp_path: Path, encoder: object
) -> None:
    Path(corpus).write_text('{"_id": "d0", "text": "one"}\nnot json\n')
    with pytest.raises(InputError, match="corpus"):
        index(corpus, tmp_path / "index", model)
    assert not workplace(tmp_path / "index").exists()
    with pytest.raises(InputError, match="there is no index"):
        open_searcher(tmp_path / "index")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB, where mounting one is allowed; filled up but for 12 of them."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not sys.platform.startswith("linux") or os.geteuid():
        pytest.skip("mounting a small disk needs root")
    if os.system(f"mount -t tmpfs -o size=64k tmpfs {disk} 2>/dev/null"):
        pytest.skip("a small disk cannot be mounted here")
    (disk / "ballast").write_bytes(b"0" * 52 * 1024)
    yield disk
    os.system(f"umount --lazy {disk}")


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("merge", "delete")])
def test_a_full_disk_is_told_truly_and_the_same_command_succeeds_later(
    verb: str, files: dict[str, Path], tmp_path: Path, small_disk: Path
) -> None:
    name, _, run = VERBS[verb]
    if verb == "add":
        (small_disk / "ballast").unlink()
        shutil.copytree(tmp_path / name, small_disk / name)
        with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", 0) as stream:
            while stream.write(b"0" * 4096):
                pass
    else:
        with (small_disk / "ballast").open("ab") as stream:
            stream.write(b"0" * 12 * 1024)
    with pytest.raises(OutputError, match="no space left on the disk") as caught:
        run(files, small_disk / name)
    assert "run the same command again" in caught.value.fix
    assert "resumes" not in caught.value.fix, "nothing was recorded"
    (small_disk / "ballast").unlink()
    run(files, small_disk / name)
    assert not list(small_disk.rglob("*.lock"))


def test_a_full_disk_after_recorded_steps_says_that_it_resumes(
    corpus: str, tmp_path: Path, encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, blocks = DenseBuilder.add, []

    def full(self: DenseBuilder, documents: Any, vectors: Any) -> None:
        blocks.append(documents)
        if len(blocks) == 2:
            with building.writing(tmp_path):
                raise OSError(28, os.strerror(28))
        plain(self, documents, vectors)

    monkeypatch.setattr(DenseBuilder, "add", full)
    settings = IndexSettings(block_size=2)
    with pytest.raises(OutputError, match="no space left") as caught:
        index(corpus, tmp_path / "index", "model", settings=settings)
    assert caught.value.fix == "free some space and run the same command again"
    with pytest.raises(InputError, match="is not complete"):
        open_searcher(tmp_path / "index")
    encoder.encoded = 0
    index(corpus, tmp_path / "index", "model", settings=settings)
    assert encoder.encoded == 3
