"""`isthmus adapt`: documents in; a retriever that learnt them, its indexes and a report out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.config.seen_queries import seen

LITTLE = [
    "dense.training.max_steps=4", "dense.training.per_device_train_batch_size=16",
    "dense.training_max_length=32", "dense.training.logging_steps=1",
    "dense.training.save_steps=2", "query_max_length=16", "document_max_length=32",
]  # fmt: skip


def sets(*more: str) -> list[str]:
    return [part for setting in (*LITTLE, *more) for part in ("--set", setting)]


PLAIN = ("pooling=mean", "similarity=cosine")


@pytest.fixture(scope="module")
def adapted(
    commands: Any, judged: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    output: Path = tmp_path_factory.mktemp("adapted") / "run"
    told = commands.succeed(
        "adapt", judged, "--model", model, "--output", output, "--guard", judged, *sets(*PLAIN)
    )
    assert f"isthmus search {output}/index/adapted" in told.stdout
    return output


def results(folder: Path) -> Any:
    return json.loads((folder / "isthmus.json").read_text(encoding="utf-8"))["results"]


def test_what_comes_out(commands: Any, adapted: Path, model: Path) -> None:
    report = json.loads((adapted / "report" / "report.json").read_text(encoding="utf-8"))
    alone = ["BM25", "as it was", "adapted"]
    assert report["systems"] == [*alone, "as it was + BM25", "adapted + BM25"]
    assert report["queries"] == 60
    text = (adapted / "report.md").read_text(encoding="utf-8")
    assert "# Before and after" in text
    assert "On the guard collection, adapted: RR@10" in text
    page = (adapted / "report.html").read_text(encoding="utf-8")
    assert "On the guard collection, adapted: RR@10" in page
    assert page.count("<table") == 2
    assert "--paper:" in page, "the look that all pages share"
    merge = results(adapted)["merge"]["adapted"]
    assert 0 <= merge["share"] <= 1
    assert merge["change"] <= 0.01
    found = commands.succeed("search", adapted / "index" / "adapted", "ba do ke")
    assert "1" in found.stdout
    described = json.loads((adapted / "final" / "encoder.json").read_text(encoding="utf-8"))
    assert described["pooling"] == "mean"
    assert described["document_max_length"] == 32
    queries = (adapted / "adapted" / "pseudo_queries.jsonl").read_text(encoding="utf-8")
    assert len(queries.splitlines()) > 40


def test_again_does_nothing_and_its_output_is_a_recipe(
    commands: Any, adapted: Path, judged: Path, model: Path, tmp_path: Path
) -> None:
    seconds = results(adapted)["seconds"]
    given = ("--guard", judged, *sets(*PLAIN))
    commands.succeed("adapt", judged, "--model", model, "--output", adapted, *given)
    assert results(adapted)["seconds"] == seconds
    again = ("--recipe", adapted, "--output", tmp_path / "again")
    commands.succeed("adapt", judged, "--model", model, *again)
    weights = "final/model.safetensors"
    assert (tmp_path / "again" / weights).read_bytes() == (adapted / weights).read_bytes()
    verdicts = [results(folder)["verdict"] for folder in (adapted, tmp_path / "again")]
    assert verdicts[0] == verdicts[1]


@pytest.mark.nightly
def test_two_processes(
    commands: Any, adapted: Path, judged: Path, model: Path, tmp_path: Path
) -> None:
    half = "dense.training.per_device_train_batch_size=8"
    commands.succeed(
        "adapt", judged, "--model", model, "--output", tmp_path / "run", *sets(*PLAIN, half),
        processes=2,
    )  # fmt: skip
    found, wanted = (results(folder)["merge"]["adapted"] for folder in (tmp_path / "run", adapted))
    assert found["share"] == wanted["share"]
    assert found["change"] == pytest.approx(wanted["change"], rel=0.01)


def test_killed(commands: Any, adapted: Path, judged: Path, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    arguments = [
        "adapt", judged, "--model", model, "--output", output, "--guard", judged, *sets(*PLAIN)
    ]  # fmt: skip
    commands.kill_when(lambda: list(output.glob("**/checkpoint-2/complete.json")), *arguments)
    commands.succeed(*arguments)
    weights = "final/model.safetensors"
    assert (output / weights).read_bytes() == (adapted / weights).read_bytes()
    assert results(output)["verdict"] == results(adapted)["verdict"]


def test_without_judged_queries_and_a_folder_of_texts(
    commands: Any, model: Path, words: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(60):
        some = " ".join(words[number : number + 12])
        (folder / f"{number}.md").write_text(f"# {words[number]}\n\n{some}.", encoding="utf-8")
    told = commands.succeed(
        "adapt", folder, "--model", model, "--output", tmp_path / "run",
        *sets(*PLAIN, "bm25.language=german"),
    )  # fmt: skip
    assert "NOT MEASURED" in told.stdout
    bm25 = json.loads((tmp_path / "run" / "index" / "bm25" / "manifest.json").read_text())["bm25"]
    assert bm25["stemmer"] == "german"
    assert "no effect" not in told.stderr, "of the encoder's index"
    assert not (tmp_path / "run" / "report").exists()
    assert (tmp_path / "run" / "index" / "adapted").is_dir()
    assert not (tmp_path / "run" / "index" / "as-it-was").exists()


def test_kept_as_it_was(commands: Any, judged: Path, model: Path, tmp_path: Path) -> None:
    told = commands.succeed(
        "adapt", judged, "--model", model, "--output", tmp_path / "run",
        *sets(*PLAIN, "dense.merge.max_change=0.0"),
    )  # fmt: skip
    assert "KEPT AS IT WAS: held-out documents would move too far" in told.stdout
    start, final = (tmp_path / "run" / name / "model.safetensors" for name in ("start", "final"))
    assert start.stat().st_size
    assert results(tmp_path / "run")["merge"]["adapted"]["share"] == 0
    means = json.loads((tmp_path / "run/report/report.json").read_text(encoding="utf-8"))["means"]
    assert means["RR@10"]["adapted"] == means["RR@10"]["as it was"]
    assert final.is_file()


def test_labels(commands: Any, judged: Path, model: Path, tmp_path: Path) -> None:
    told = commands.succeed(
        "adapt", judged, "--model", model, "--output", tmp_path / "run", "--labels", judged,
        *sets(*PLAIN, "finetune.training.num_train_epochs=1"),
    )  # fmt: skip
    assert "adapted + labels: RR@10" in told.stdout
    snapshot = json.loads((tmp_path / "run/labelled/isthmus.json").read_text(encoding="utf-8"))
    assert snapshot["results"]["queries"] == 60
    assert snapshot["identity"]["settings"]["split"] == "train"
    fingerprint = snapshot["identity"]["data"]["collection"]
    assert "trained on the split 'train'" in str(seen(str(tmp_path / "run"), fingerprint, "train"))


def test_sparse(
    commands: Any, collection: Path, judged: Path, model: Path, tmp_path: Path, settings: Any
) -> None:
    commands.succeed(
        "finetune", "--recipe", "splade", "--model", model, collection,
        "--output", tmp_path / "sparse",
        *settings("query_max_length=16", "document_max_length=32", "negatives=null",
                  "training.max_steps=2", "development=null"),
    )  # fmt: skip
    commands.succeed(
        "adapt", judged, "--model", tmp_path / "sparse", "--output", tmp_path / "run", *sets()
    )
    described = json.loads((tmp_path / "run/final/encoder.json").read_text(encoding="utf-8"))
    assert described["kind"] == "sparse"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("query_max_length=8",), "does not say how it makes vectors"),
        (
            (*PLAIN, "dense.losses.keep=null", "dense.losses.contrastive=null"),
            "--set dense.losses.NAME.weight=1.0",
        ),
        ((*PLAIN, "split=dev"), "has no split 'dev'"),
        ((*PLAIN, "dense.pseudo_queries.sources.titel.share=1"), "titel"),
        ((*PLAIN, "labels=nowhere"), "nowhere"),
        ((*PLAIN, "guard=nowhere"), "nowhere"),
        ((*PLAIN, "dense.document_max_length=64"), "would be lost"),
    ],
)
def test_refused_before_anything_is_trained(
    commands: Any, judged: Path, model: Path, tmp_path: Path, arguments: Any, message: str
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (plain / name).write_bytes((model / "final" / name).read_bytes())
    ended = commands.run(
        "adapt", judged, "--model", plain, "--output", tmp_path / "run", *sets(*arguments)
    )
    assert ended.returncode == 2
    assert message in ended.stderr
    assert not (tmp_path / "run" / "adapted" / "final").exists()
