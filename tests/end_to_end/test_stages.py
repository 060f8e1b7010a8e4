"""All stages on real questions and answers: killed, changed, repeated, on two processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from isthmus.collections import open_collection
from isthmus.encoders import load_encoder, load_reranker
from isthmus.records import Document

_STAGES = ["bm25", "mined", "reranker", "distilled"]
_STEPS = 4


@pytest.fixture(scope="module")
def answers(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder: the first questions of InsuranceQA, their answers, and some others."""
    source = open_collection(str(shared_data / "collections" / "insuranceqa"))
    folder = tmp_path_factory.mktemp("answers")
    (folder / "qrels").mkdir()
    asked: set[str] = set()
    relevant: set[str] = set()
    for split, queries in (("train", 48), ("dev", 16)):
        judged = dict(list(source.judgements(split).items())[:queries])
        lines = [f"{q}\t{d}\t{r}" for q, documents in judged.items() for d, r in documents.items()]
        text = "\n".join(["query-id\tcorpus-id\tscore", *lines, ""])
        (folder / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")
        asked |= judged.keys()
        relevant |= {document for documents in judged.values() for document in documents}

    def kept() -> Iterator[Document]:
        for number, document in enumerate(source.documents()):
            if document.id in relevant or number % 100 == 0:
                yield document

    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as stream:
        for document in kept():
            record = {"_id": document.id, "title": document.title, "text": document.text}
            stream.write(json.dumps(record) + "\n")
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as stream:
        for query in source.queries():
            if query.id in asked:
                stream.write(json.dumps({"_id": query.id, "text": query.text}) + "\n")
    return folder


@pytest.fixture(scope="module")
def start(
    commands: Any,
    answers: Path,
    settings: Callable[..., list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A tiny encoder with dropout that has seen the answers for a moment."""
    folder = tmp_path_factory.mktemp("start") / "tiny"
    commands.succeed(
        "pretrain", answers, "--model", "scratch:tiny", "--output", folder,
        *settings(
            "vocabulary=600", "max_length=24", "training.max_steps=2", "probes.documents=0",
        ),
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def command(
    settings: Callable[..., list[str]], answers: Path, start: Path
) -> Callable[..., list[str]]:
    """A fine-tuning of few steps, learning so fast that every one of them shows."""

    def arguments(recipe: str, output: Path, *more: str) -> list[str]:
        negatives = [f"stages.{name}.negatives.num_negatives=2" for name in _STAGES[1:]]
        return [
            "finetune", "--recipe", recipe, "--model", str(start), str(answers),
            "--output", str(output),
            *settings(
                f"training.max_steps={_STEPS}", "training.save_steps=2", "document_max_length=24",
                "training.learning_rate=1e-3", "stages.reranker.training.learning_rate=1e-3",
                # Not the best model, which may be any, but what all steps lead to.
                "development=null", "negatives.num_negatives=2", *negatives, *more,
            ),
        ]  # fmt: skip

    return arguments


def folders(output: Path) -> dict[str, Path]:
    named = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))["results"]["stages"]
    return {name: output / folder for name, folder in named.items()}


def log(folder: Path) -> list[dict[str, float]]:
    results = json.loads((folder / "isthmus.json").read_text(encoding="utf-8"))["results"]
    return [line for line in results["log"] if "loss" in line]


def weights(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = load_file(folder / "final" / "model.safetensors")
    return found


def assert_same(one: Path, two: Path) -> None:
    mine, other = weights(one), weights(two)
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, other[name], err_msg=f"{one.name} {name}")


@pytest.fixture(scope="module")
def whole(commands: Any, command: Callable[..., list[str]], tmp_path_factory: Any) -> Path:
    """All stages, uninterrupted, with a cache that nobody else sees."""
    output: Path = tmp_path_factory.mktemp("whole") / "out"
    cache = commands.environment["ISTHMUS_CACHE"]
    commands.environment["ISTHMUS_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    ended = commands.succeed(*command("three-stage", output))
    commands.environment["ISTHMUS_CACHE"] = cache
    for name in _STAGES:
        assert name in ended.stdout, "the table"
    return output


def test_every_stage_restarts_and_the_last_retriever_is_final(whole: Path, start: Path) -> None:
    made = folders(whole)
    assert list(made) == _STAGES
    assert_same(whole, made["distilled"])
    before = weights(start)
    for name, folder in made.items():
        identity = json.loads((folder / "isthmus.json").read_text(encoding="utf-8"))["identity"]
        assert identity["settings"]["model"] == str(start)
        if name != "reranker":
            moved = weights(folder)
            assert any((value != before[key]).any() for key, value in moved.items()), name
    snapshot = json.loads((made["distilled"] / "isthmus.json").read_text(encoding="utf-8"))
    assert snapshot["identity"]["stages"] == {
        name: made[name].name for name in ("mined", "reranker")
    }
    assert any("kl" in line and line["kl"] > 0 for line in log(made["distilled"]))


def test_killed_inside_a_stage(
    commands: Any, command: Callable[..., list[str]], whole: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    commands.kill_when(
        lambda: list(output.glob("distilled-*/checkpoint-2/complete.json")),
        *command("three-stage", output),
    )
    assert not (output / "final").exists()
    said = commands.succeed("finetune", "--recipe", output, "--output", output).stderr
    assert said.count(" is done") == 3
    assert "resume from" in said
    mine, expected = folders(output), folders(whole)
    assert [folder.name for folder in mine.values()] == [f.name for f in expected.values()]
    for name in _STAGES:
        assert_same(mine[name], expected[name])
        assert log(mine[name]) == log(expected[name])
    assert_same(output, whole)


def test_a_stage_can_be_repeated(commands: Any, whole: Path, tmp_path: Path) -> None:
    mined = folders(whole)["mined"]
    commands.succeed("finetune", "--recipe", mined, "--output", tmp_path / "mined-again")
    assert_same(tmp_path / "mined-again", mined)


@pytest.fixture(scope="module")
def sparse(commands: Any, command: Callable[..., list[str]], tmp_path_factory: Any) -> Path:
    """The sparse stages, with some of the queries, and measured."""
    output: Path = tmp_path_factory.mktemp("sparse") / "out"
    small = ("training.max_steps=1", "development={documents: 40}", "queries=20")
    ended = commands.succeed(*command("three-stage-sparse", output, *small), plots=True)
    assert "RR@10" in ended.stdout
    assert len(list(output.glob("*/development.svg"))) == 4
    return output


def test_the_sparse_stages_with_some_of_the_queries(sparse: Path) -> None:
    made = [
        json.loads((folder / "isthmus.json").read_text()) for folder in folders(sparse).values()
    ]
    kinds = [snapshot["identity"]["settings"]["encoder"] for snapshot in made]
    assert kinds == ["sparse", "sparse", "cross", "sparse"]
    assert [snapshot["results"]["queries"] for snapshot in made] == [20] * 4
    drawn = [np.load(folder / "negatives.npy") for folder in folders(sparse).values()]
    # A step of 8 queries is no epoch of 20: one epoch's negatives are enough.
    assert [negatives.shape for negatives in drawn] == [(20, 2)] * 4


def test_what_was_trained_is_the_same_in_sentence_transformers(
    whole: Path, sparse: Path, answers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder

    source = open_collection(str(answers))
    documents = [document for document, _ in zip(source.documents(), range(20), strict=False)]
    texts = [document.text for document in documents]
    ours = load_encoder(str(whole), exact=True).encode_documents(documents)
    theirs = SentenceTransformer(str(whole / "final"), device="cpu").encode(texts)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    weighed = load_encoder(str(sparse), exact=True).encode_documents(documents)
    there = SparseEncoder(str(sparse / "final"), device="cpu")
    expected = there.encode(texts, convert_to_sparse_tensor=False).numpy()
    assert (expected > 0).any(axis=1).all()
    np.testing.assert_allclose(weighed.toarray(), expected, atol=1e-5)
    monkeypatch.setattr("isthmus.encoders.encoder.native_bf16", lambda: False)  # nor is it there
    reranker = folders(whole)["reranker"]
    queries = [query.text for query, _ in zip(source.queries(), documents, strict=False)]
    scores = load_reranker(str(reranker)).score(list(zip(queries, documents, strict=True)))
    judge = CrossEncoder(str(reranker / "final"), device="cpu", activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(
        scores, judge.predict(list(zip(queries, texts, strict=True))), atol=1e-5
    )


@pytest.mark.nightly
def test_two_processes(commands: Any, command: Callable[..., list[str]], tmp_path: Path) -> None:
    """Without dropout, which draws differently on two processes, they differ by rounding alone."""
    more = ["training.dropout=0.0", "stages.reranker=null", "stages.distilled=null"]
    more += ["training.learning_rate=1e-5"]
    one, two = tmp_path / "one", tmp_path / "two"
    commands.succeed(*command("three-stage", one, *more))
    half = "training.per_device_train_batch_size=4"
    commands.succeed(*command("three-stage", two, *more, half), processes=2)
    mine, other = folders(one), folders(two)
    assert list(mine) == list(other) == ["bm25", "mined"]
    for left, right in zip(log(mine["bm25"]), log(other["bm25"]), strict=True):
        assert left == pytest.approx(right, rel=1e-4)
    # From there on they differ: retrievers that differ by rounding, and know as little as these,
    # rank many documents the other way round.
    assert [line["step"] for line in log(other["mined"])] == [1, 2, 3, 4]
    assert_same(two, other["mined"])
