"""Probes in runs as users start, kill and split them, and what such a run leaves behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

import isthmus

# A learning rate that spoils the model: every evaluation after the first is worse.
SPOILT = ("training.learning_rate=0.3", "training.warmup_ratio=0.0")
STOPPING = ("probes.every=2", "probes.best_by=masked_lm", "probes.patience=2")
Settings = Callable[..., list[str]]


def results(output: Path) -> dict[str, Any]:
    snapshot = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))
    assert snapshot["complete"]
    found: dict[str, Any] = snapshot["results"]
    return found


def probe_lines(output: Path) -> list[dict[str, float]]:
    return [line for line in results(output)["log"] if "probe/masked_lm" in line]


def stops(output: Path) -> list[float]:
    return [line["stopped_early"] for line in results(output)["log"] if "stopped_early" in line]


@pytest.mark.nightly
def test_two_processes_stop_together(
    commands: Any, collection: Path, model: Path, settings: Settings, tmp_path: Path
) -> None:
    command = ["pretrain", "--recipe", "bow", str(collection), "--model", str(model)]
    command += settings(
        "max_length=32", "training.max_steps=12", "training.dropout=0.0", *SPOILT, *STOPPING
    )
    one, two = tmp_path / "one", tmp_path / "two"
    batch = ["--set", "training.per_device_train_batch_size"]
    alone = (*command, "--output", one, batch[0], f"{batch[1]}=16")
    told = commands.succeed(*alone, plots=True).stderr
    assert "20 documents are held out" in told
    assert "masked_lm has not improved for 2 evaluations: stop" in told
    assert "final: the best by masked_lm, step 0" in told
    assert f"{one / 'probes.tsv'}, {one / 'probes.svg'}" in told
    assert (one / "probes.svg").is_file()
    ended = commands.succeed(*command, "--output", two, batch[0], f"{batch[1]}=8", processes=2)
    assert ended.stderr.count("has not improved") == 1, "told once"
    assert stops(one) == stops(two) == [4]
    assert results(one)["best_step"] == results(two)["best_step"] == 0
    assert [line["step"] for line in probe_lines(two)] == [0, 2, 4]
    first, *later = zip(probe_lines(one), probe_lines(two), strict=True)
    assert first[0] == pytest.approx(first[1], rel=1e-5)
    for own, together in later:  # what is spoilt so fast differs in more than the last digits
        assert own["probe/masked_lm"] == pytest.approx(together["probe/masked_lm"], rel=0.2)
    start = load_file(model / "final" / "model.safetensors")
    for output in (one, two):
        final = load_file(output / "final" / "model.safetensors")
        for name, value in final.items():
            np.testing.assert_array_equal(value, start[name], err_msg="the best was the start")


def test_killed_and_run_again(
    commands: Any,
    collection: Path,
    model: Path,
    settings: Settings,
    tmp_path: Path,
) -> None:
    command = ["pretrain", "--recipe", "autoencoding", collection, "--model", model]
    command += settings(
        "max_length=32", "training.max_steps=20", "training.save_steps=5",
        "training.learning_rate=1e-3", "training.lr_scheduler_type=constant",
        "training.warmup_ratio=0.0", "probes.every=2", "probes.best_by=masked_lm",
    )  # fmt: skip
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    commands.succeed(*command, "--output", whole)
    reached = (torn / "checkpoint-10" / "complete.json").is_file
    commands.kill_when(reached, *command, "--output", torn)
    commands.succeed(*command, "--output", torn)
    assert probe_lines(torn) == probe_lines(whole)
    assert [line["step"] for line in probe_lines(torn)] == list(range(0, 21, 2))
    assert results(torn)["best_step"] == results(whole)["best_step"] > 0
    assert (torn / "probes.tsv").read_bytes() == (whole / "probes.tsv").read_bytes()
    for file in ("model.safetensors", "pretraining.safetensors"):
        one, two, best = (
            load_file(folder / file) for folder in (whole / "final", torn / "final", torn / "best")
        )
        for name, value in one.items():
            np.testing.assert_array_equal(value, two[name])
            np.testing.assert_array_equal(value, best[name])
    check_probed(commands, whole, model, collection, tmp_path / "probed")


def check_probed(commands: Any, run: Path, start: Path, collection: Path, output: Path) -> None:
    """Without training, `isthmus research probe` finds what the probes of the training found."""
    told = commands.succeed(
        "research", "probe", start, run, "--documents", collection, "-o", output, "--json",
        "--set", "max_length=32",
    )  # fmt: skip
    found = json.loads(told.stdout)
    assert found == json.loads((output / "report.json").read_text())
    assert found["documents"] == 20
    first, *_ = probe_lines(run)
    (best,) = (line for line in probe_lines(run) if line["step"] == results(run)["best_step"])
    for name, line in ((run, best), (start, first)):
        logged = {key.removeprefix("probe/"): line[key] for key in line if "probe/" in key}
        if name == start:  # whose decoder is not there yet
            logged = {key: logged[key] for key in logged if not key.startswith("bottleneck")}
        assert found["values"][str(name)] == pytest.approx(logged, rel=1e-5)
    assert "| – |" in (output / "table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_encoder_is_used_with_the_vector_that_was_trained(
    commands: Any,
    collection: Path,
    model: Path,
    settings: Settings,
    tmp_path: Path,
    pooling: str,
) -> None:
    run, index = tmp_path / "run", tmp_path / "index"
    commands.succeed(
        "pretrain", "--recipe", "bow", collection, "--model", model, "--output", run,
        *settings("max_length=16", "training.max_steps=3",
                  f"objectives.bag_of_words.vector={pooling}"),
    )  # fmt: skip
    described = json.loads((run / "final" / "encoder.json").read_text(encoding="utf-8"))
    assert described == {
        "kind": "dense", "pooling": pooling, "include_prompt": True, "truncate_dim": None,
        "similarity": "dot", "query_max_length": 16, "document_max_length": 16,
        "query_prompt": "", "document_prompt": "", "titles": True,
    }  # fmt: skip
    commands.succeed("index", collection, "--model", run, "--output", index)
    vectors = np.load(index / "segments" / "000001" / "dense" / "vectors.npy")
    lines = (collection / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line) for line in lines]
    assert len(vectors) == len(documents)
    texts = [f"{document['title']} {document['text']}" for document in documents[:8]]
    expected = plain_vectors(run / "final", texts, pooling)
    other = plain_vectors(run / "final", texts, "mean" if pooling == "cls" else "cls")
    # Rounded to bfloat16 where the chip computes in it.
    np.testing.assert_allclose(vectors[:8], expected, atol=0.1)
    assert np.abs(vectors[:8] - other).max() > 0.2
    there = SentenceTransformer(str(run / "final"), device="cpu")
    assert there.max_seq_length == 16
    np.testing.assert_allclose(there.encode(texts), expected, atol=1e-4)


def test_a_lexicon_is_handed_on_as_a_sparse_encoder(
    commands: Any, collection: Path, model: Path, settings: Settings, tmp_path: Path
) -> None:
    run, index = tmp_path / "run", tmp_path / "index"
    short = settings("max_length=16", "training.max_steps=2")
    told = commands.succeed(
        "pretrain", "--recipe", "lexmae", collection, "--model", model,
        "--output", run, *short,
    )  # fmt: skip
    assert "-r lexmae-sparse" in told.stdout
    described = json.loads((run / "final" / "encoder.json").read_text(encoding="utf-8"))
    kept = {key: described[key] for key in ("kind", "form", "query_terms", "document_terms")}
    assert kept == {"kind": "sparse", "form": "lexmae", "query_terms": 256, "document_terms": 256}
    commands.succeed("index", collection, "--model", run, "--output", index)
    assert isthmus.open_index(index).names == ["bm25", "sparse"]
    dense = commands.succeed(
        "finetune", "--model", run, collection, "--output", tmp_path / "dense",
        "--set", "document_max_length=16", "--set", "query_max_length=16", "--set", "audit=false",
        "--set", "training.max_steps=1", "--set", "negatives.num_negatives=1",
    )  # fmt: skip
    assert "was made sparse; here it becomes dense" in " ".join(dense.stderr.split())


def test_a_model_with_a_vector_of_its_own(
    commands: Any, collection: Path, model: Path, settings: Settings, tmp_path: Path
) -> None:
    averaging = tmp_path / "averaging"
    shutil.copytree(model / "final", averaging)
    own = {"kind": "dense", "pooling": "mean", "similarity": "cosine"}
    (averaging / "encoder.json").write_text(json.dumps(own))
    short = settings("max_length=16", "training.max_steps=2")
    for vector, similarity in (("cls", "dot"), ("mean", "cosine")):
        told = commands.succeed(
            "pretrain", "--recipe", "bow", collection, "--model", averaging,
            "--output", tmp_path / vector, *short,
            "--set", f"objectives.bag_of_words.vector={vector}",
        )  # fmt: skip
        said = " ".join(told.stderr.split())
        for part in (
            "was made with pooling=mean; this recipe trains cls",
            "(--set objectives.bag_of_words.vector=mean trains mean)",
        ):
            assert (part in said) == (vector == "cls")
        described = json.loads((tmp_path / vector / "final" / "encoder.json").read_text())
        assert (described["pooling"], described["similarity"]) == (vector, similarity)


def plain_vectors(folder: Path, texts: list[str], pooling: str) -> Any:
    """One text at a time, with transformers alone."""
    tokenizer, encoder = (kind.from_pretrained(str(folder)) for kind in (AutoTokenizer, AutoModel))
    found = []
    for text in texts:
        row = tokenizer(text, truncation=True, max_length=16, return_tensors="pt")
        with torch.no_grad():
            states = encoder.eval()(row["input_ids"], row["attention_mask"]).last_hidden_state[0]
        found.append(states[0] if pooling == "cls" else states.mean(0))
    return torch.stack(found).numpy()
