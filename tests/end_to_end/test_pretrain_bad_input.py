"""What pre-training cannot use ends in a message that says what to do; nothing is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Refuses = Callable[..., str]
Pretrain = Callable[..., list[Any]]


@pytest.fixture
def pretrain(
    collection: Path, model: Path, settings: Callable[..., list[str]], tmp_path: Path
) -> Pretrain:
    """The arguments of a short run of a recipe into `output`, with changes to its settings."""

    def arguments(
        recipe: str, *changes: str, corpus: Path = collection, start: Path = model
    ) -> list[Any]:
        return [
            "pretrain", "--recipe", recipe, corpus, "--model", start,
            "--output", tmp_path / "output",
            *settings("training.max_steps=2", "max_length=32", "probes.documents=0", *changes),
        ]  # fmt: skip

    return arguments


@pytest.fixture
def refuses(commands: Any, tmp_path: Path) -> Refuses:
    """Runs a command that must be refused; its message, and nothing that blocks its output."""

    def run(command: Sequence[Any]) -> str:
        result = commands.run(*command)
        message: str = result.stderr
        assert result.returncode == 2, message
        assert "Traceback" not in message
        parts = message[message.index("error: ") :]
        assert "\n  fix: " in parts
        output = tmp_path / "output"
        if output.exists():  # a claim, and where it had to be made a model to start from
            left = {file.name for file in output.iterdir()}
            assert left <= {"isthmus.json", "start"}
            assert json.loads((output / "isthmus.json").read_text())["complete"] is False
        return parts

    return run


def write_corpus(file: Path, texts: Sequence[str]) -> Path:
    lines = [json.dumps({"_id": str(place), "text": text}) for place, text in enumerate(texts)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_no_document_is_longer_than_one_token(
    refuses: Refuses, commands: Any, pretrain: Pretrain, tmp_path: Path
) -> None:
    # Empty, one letter, nothing that the tokenizer keeps.
    corpus = write_corpus(tmp_path / "corpus.jsonl", ["", "b", "\u0301", "d"])
    for recipe in ("bow", "cotmae", "cdmae"):
        message = refuses(pretrain(recipe, "problems=skip", corpus=corpus))
        assert "is longer than one token" in message
        assert str(corpus) in message
    message = refuses(
        ["pretrain", corpus, "--model", "scratch:tiny", "--output", tmp_path / "output",
         "--set", "problems=skip", "--set", "vocabulary=100"]
    )  # fmt: skip
    assert "is longer than one token" in message
    # The folder is free for the corrected command.
    ended = commands.succeed(*pretrain("bow"))
    assert (tmp_path / "output" / "final" / "model.safetensors").is_file(), ended.stderr


@pytest.mark.parametrize("recipe", ["cotmae", "cocondenser", "bow-neighbours"])
def test_documents_of_one_span_fall_back_and_are_counted(
    commands: Any, pretrain: Pretrain, recipe: str, tmp_path: Path
) -> None:
    # 30 short documents and 10 long ones, as many as five steps of eight.
    texts = ["ba do ke"] * 30 + ["ba do ke li mu na po ri su te. " * 4] * 10
    corpus = write_corpus(tmp_path / "corpus.jsonl", texts)
    command = pretrain(recipe, "view.span=24", "training.max_steps=5", corpus=corpus)
    commands.succeed(*command)
    log = json.loads((tmp_path / "output" / "isthmus.json").read_text())["results"]["log"]
    shares = [entry["view/one_span"] for entry in log if "loss" in entry]
    assert len(shares) == 5
    assert sum(shares) / 5 == pytest.approx(0.75)
