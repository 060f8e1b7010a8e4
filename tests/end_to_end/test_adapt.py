"""`isthmus adapt`: documents in; a retriever that learnt them, its indexes and a report out."""

from __future__ import annotations

import html
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus.config.seen_queries import seen
from isthmus.workflows.adapt import Adaptation

LITTLE = [
    "finetune.training.max_steps=4", "finetune.training.per_device_train_batch_size=16",
    "finetune.training_max_length=32", "finetune.training.logging_steps=1",
    "finetune.training.save_steps=2", "query_max_length=16", "document_max_length=32",
]  # fmt: skip


def sets(*more: str) -> list[str]:
    return [part for setting in (*LITTLE, *more) for part in ("--set", setting)]


PLAIN = ("pooling=mean", "similarity=cosine")


@pytest.fixture(scope="module")
def elsewhere(judged: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same queries over some more documents."""
    folder: Path = tmp_path_factory.mktemp("elsewhere") / "more"
    shutil.copytree(judged, folder)
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"_id": "more", "text": "ba do ke"}\n')
    return folder


def given(judged: Path, elsewhere: Path, model: Path, output: Path) -> tuple[Any, ...]:
    words = ("adapt", judged, "--model", model, "--output", output, "--eval-on", judged)
    return (*words, "--eval-on", elsewhere, *sets(*PLAIN))


@pytest.fixture(scope="module")
def adapted(
    commands: Any, judged: Path, elsewhere: Path, model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:  # fmt: skip
    output: Path = tmp_path_factory.mktemp("adapted") / "run"
    told = commands.succeed(*given(judged, elsewhere, model, output))
    assert "next: isthmus " in told.stdout
    return output


def results(folder: Path) -> Any:
    return json.loads((folder / "isthmus.json").read_text(encoding="utf-8"))["results"]


def report_of(folder: Path) -> Any:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def test_what_comes_out(commands: Any, adapted: Path, elsewhere: Path, model: Path) -> None:
    found = report_of(adapted)
    report = found["report"]
    alone = ["BM25", "original", "adapted"]
    fused = [f"{name} + BM25{rest}" for rest in ("", " + tokens") for name in alone[1:]]
    assert report["systems"] == [*alone, *fused]
    assert report["queries"] == 60
    pairs = [(pair["first"], pair["second"]) for pair in report["tests"]["RR@10"]["pairs"]]
    assert pairs == [("adapted", "original"), (fused[-1], fused[-2])]
    assert found["seed"] == 42
    assert "documents" in found["survey"]
    text = (adapted / "report.md").read_text(encoding="utf-8")
    page = (adapted / "report.html").read_text(encoding="utf-8")
    for sentence in found["sentences"]:
        assert html.escape(sentence) in page
    assert f"{elsewhere.name} (60 judged queries)" in text
    assert page.count("<table") == 3, "a table for each measure, of both collections"
    assert "--paper:" in page, "the look that all pages share"
    merge = results(adapted)["merge"]["adapted"]
    assert 0 <= merge["share"] <= 1
    assert merge["change"] <= 0.01
    assert "1" in commands.succeed("search", adapted, "ba do ke").stdout
    described = json.loads((adapted / "model" / "encoder.json").read_text(encoding="utf-8"))
    assert described["pooling"] == "mean"
    assert described["document_max_length"] == 32
    (queries,) = adapted.rglob("pseudo_queries.jsonl")
    assert len(queries.read_text(encoding="utf-8").splitlines()) > 40
    opened = Adaptation(adapted)
    assert opened.report is not None
    assert opened.report.means == report["means"]
    vector = opened.encoder.encode_queries(["ba do ke"])
    assert (vector == isthmus.load_encoder(str(adapted)).encode_queries(["ba do ke"])).all()
    assert len(opened.index.search("ba do ke", 3)) == 3


def test_what_the_report_measures_is_what_the_index_answers(adapted: Path, judged: Path) -> None:
    report = Adaptation(adapted).report
    found = isthmus.evaluate(judged, adapted, measures="RR@10")
    assert report is not None
    (answered,) = found.per_query["RR@10"].values()
    assert answered == report.per_query["RR@10"]["adapted + BM25 + tokens"]


def test_again_does_nothing_and_overwriting_repeats(
    commands: Any, adapted: Path, judged: Path, elsewhere: Path, model: Path
) -> None:
    seconds, found = results(adapted)["seconds"], report_of(adapted)
    weights = (adapted / "model/model.safetensors").read_bytes()
    again = given(judged, elsewhere, model, adapted)
    commands.succeed(*again)
    assert results(adapted)["seconds"] == seconds
    refused = commands.run(*again, "--set", "passages=true")
    assert "already holds another job" in refused.stderr
    commands.succeed(*again, "--overwrite")
    assert results(adapted)["seconds"] != seconds
    assert (adapted / "model/model.safetensors").read_bytes() == weights
    assert report_of(adapted) == found


def test_its_output_is_a_recipe(
    commands: Any, adapted: Path, judged: Path, model: Path, tmp_path: Path
) -> None:
    words = ("adapt", judged, "--model", model, "--output", tmp_path / "again")
    commands.succeed(*words, "--recipe", adapted)
    weights = "model/model.safetensors"
    assert (tmp_path / "again" / weights).read_bytes() == (adapted / weights).read_bytes()
    assert report_of(tmp_path / "again") == report_of(adapted)


@pytest.mark.nightly
def test_two_processes(
    commands: Any, adapted: Path, judged: Path, model: Path, tmp_path: Path
) -> None:
    half = "finetune.training.per_device_train_batch_size=8"
    commands.succeed(
        "adapt", judged, "--model", model, "--output", tmp_path / "run", *sets(*PLAIN, half),
        processes=2,
    )  # fmt: skip
    found, wanted = (results(folder)["merge"]["adapted"] for folder in (tmp_path / "run", adapted))
    assert found["share"] == wanted["share"]
    assert found["change"] == pytest.approx(wanted["change"], rel=0.01)


def test_killed(
    commands: Any, adapted: Path, judged: Path, elsewhere: Path, model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    arguments = given(judged, elsewhere, model, output)
    commands.kill_when(lambda: list(output.glob("**/checkpoint-2/complete.json")), *arguments)
    commands.succeed(*arguments)
    weights = "model/model.safetensors"
    assert (output / weights).read_bytes() == (adapted / weights).read_bytes()
    assert report_of(output) == report_of(adapted)


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
    assert f"next: isthmus search {tmp_path / 'run'}" in told.stdout
    fields = json.loads((tmp_path / "run" / "index" / "manifest.json").read_text())["fields"]
    assert list(fields) == ["bm25", "dense", "tokens"]
    assert fields["bm25"]["settings"]["stemmer"] == "german"
    assert report_of(tmp_path / "run")["report"] is None


def test_unchanged(commands: Any, judged: Path, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    told = commands.succeed(
        "adapt", judged, "--model", model, "--output", output,
        *sets(*PLAIN, "finetune.merge.max_change=0.0"),
    )  # fmt: skip
    assert "UNCHANGED: with any of the trained weights" in told.stdout
    assert results(output)["merge"]["adapted"]["share"] == 0
    found = report_of(output)
    means = found["report"]["means"]
    assert means["RR@10"]["adapted"] == means["RR@10"]["original"]
    assert found["recommended"] is False
    assert "Keep the original encoder" in told.stdout
    assert f"next: isthmus index {judged} -m {model}" in told.stdout
    assert Adaptation(output).report is not None


def test_labels(commands: Any, judged: Path, model: Path, tmp_path: Path) -> None:
    told = commands.succeed(
        "adapt", judged, "--model", model, "--output", tmp_path / "run", "--train-on", judged,
        *sets(*PLAIN, "finetune.stages.labelled.training.num_train_epochs=1"),
    )  # fmt: skip
    assert "labelled: RR@10" in told.stdout
    (labelled,) = (tmp_path / "run" / "training").glob("labelled-*/isthmus.json")
    snapshot = json.loads(labelled.read_text(encoding="utf-8"))
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
    described = json.loads((tmp_path / "run/model/encoder.json").read_text(encoding="utf-8"))
    assert described["kind"] == "sparse"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("query_max_length=8",), "does not say how it makes vectors"),
        (
            (*PLAIN, "finetune.losses.keep=null", "finetune.losses.contrastive=null"),
            "--set finetune.stages.adapted.losses.NAME.weight=1.0",
        ),
        ((*PLAIN, "split=dev"), "has no split 'dev'"),
        ((*PLAIN, "finetune.pseudo_queries.sources.titel.share=1"), "titel"),
        ((*PLAIN, "train_on=nowhere"), "nowhere"),
        ((*PLAIN, "eval_on=[nowhere]"), "nowhere"),
        ((*PLAIN, "finetune.document_max_length=64"), "would be lost"),
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
    assert not list((tmp_path / "run").rglob("final"))
