"""What the user got wrong ends in a message that says what to do, exit code 2 and no traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Refuses = Callable[..., str]


@pytest.fixture
def refuses(commands: Any) -> Refuses:
    """Runs a command that must be refused; its message."""

    def run(*arguments: str | Path) -> str:
        result = commands.run(*arguments)
        message: str = result.stderr
        assert result.returncode == 2, message
        assert "Traceback" not in message
        parts = message[message.index("error: ") :]
        assert "\n  fix: " in parts
        return parts

    return run


@pytest.fixture
def beir(collection: Path, tmp_path: Path) -> Path:
    """A copy of the collection, to be damaged."""
    folder = tmp_path / "beir"
    shutil.copytree(collection, folder)
    return folder


def training(verb: str, settings: Callable[..., list[str]], *more: str | Path) -> list[Any]:
    small = {"pretrain": "probes.documents=0", "finetune": "negatives.num_negatives=1"}
    return [verb, *more, *settings("training.max_steps=2", small[verb])]


def test_missing_file(refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "documents.jsonl").write_text('{"_id": "1", "text": "a"}\n', encoding="utf-8")
    missing = tmp_path / "document.jsonl"
    message = refuses("index", missing, "--output", tmp_path / "index")
    assert f"there is no file or folder '{missing}'" in message
    assert f"expected: {tmp_path / 'documents.jsonl'}\n" in message
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_empty_corpus(refuses: Refuses, model: Path, content: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(content, encoding="utf-8")
    for command in (
        ["index", corpus],
        ["index", corpus, "--model", model],
        ["pretrain", corpus, "--model", model],
        ["pretrain", corpus, "--model", "scratch:tiny"],
    ):
        message = refuses(*command, "--output", tmp_path / "output")
        assert "is empty" in message or "no document" in message
        assert str(corpus) in message
        shutil.rmtree(tmp_path / "output", ignore_errors=True)


def test_judgements_of_unknown_documents(
    refuses: Refuses,
    commands: Any,
    model: Path,
    beir: Path,
    settings: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    judged = beir / "qrels" / "train.tsv"
    # One query keeps a positive, another loses its only one.
    lines = judged.read_text(encoding="utf-8").splitlines()
    lines[2:3] = ["q1\tnowhere\t1"]
    judged.write_text("\n".join([*lines, "q0\tneither\t1"]) + "\n", encoding="utf-8")
    command = training("finetune", settings, "--model", model, beir)
    message = refuses(*command, "--output", tmp_path / "output")
    assert "unknown document" in message
    assert "'neither' is not in the corpus" in message
    assert "query 'q0'" in message

    ended = commands.succeed(*command, "--output", tmp_path / "skip", "--set", "problems=skip")
    assert "skipped 2 x unknown document" in ended.stderr
    made = json.loads((tmp_path / "skip" / "isthmus.json").read_text(encoding="utf-8"))
    assert made["results"]["queries"] == 119  # all but the one without a positive


def test_no_positive_is_left(
    refuses: Refuses, model: Path, beir: Path, settings: Callable[..., list[str]], tmp_path: Path
) -> None:
    (beir / "qrels" / "train.tsv").write_text("q0 0 nowhere 1\n", encoding="utf-8")
    command = training("finetune", settings, "--model", model, beir)
    message = refuses(*command, "--output", tmp_path / "output", "--set", "problems=skip")
    assert "no query with a relevant document in the corpus" in message


def test_no_training_split(
    refuses: Refuses,
    commands: Any,
    model: Path,
    beir: Path,
    settings: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    (beir / "qrels" / "train.tsv").rename(beir / "qrels" / "test.tsv")
    command = training("finetune", settings, "--model", model, beir)
    message = refuses(*command, "--output", tmp_path / "output")
    assert "no split 'train'" in message
    assert "it has only test, to measure by" in message
    assert "qrels/train.tsv" in message
    assert "--set split" not in message  # nobody is led to train on what is measured by
    (beir / "qrels" / "test.tsv").rename(beir / "qrels" / "pairs.tsv")
    (beir / "qrels" / "test.tsv").write_bytes((beir / "qrels" / "pairs.tsv").read_bytes())
    message = refuses(*command, "--output", tmp_path / "output")
    assert "expected: pairs\n" in message
    assert "--set split=NAME" in message
    told = commands.succeed(*command, "--output", tmp_path / "on-test", "--set", "split=test")
    assert "training on the split 'test'" in told.stderr
    told = commands.succeed(*command, "--output", tmp_path / "on-pairs", "--set", "split=pairs")
    assert "training on the split" not in told.stderr


def test_query_without_tokens(
    refuses: Refuses, commands: Any, model: Path, collection: Path, tmp_path: Path
) -> None:
    queries = tmp_path / "queries.tsv"
    queries.write_text("q1\tba\nq2\t\u200b \u0301\n", encoding="utf-8")
    for retriever in ("bm25", model):
        index = tmp_path / f"index-{Path(retriever).name}"
        commands.succeed("index", collection, "--model", retriever, "--output", index)
        assert "no words to search for" in refuses("search", index, "\u200b")
        # One of many is no reason to leave the others unanswered.
        told = commands.succeed(
            "search", index, "--queries", queries, "--output", tmp_path / "out.trec"
        )
        assert "1 of 2 queries have no words to search for" in " ".join(told.stderr.split())
        assert "'q2'" in told.stderr
        assert (tmp_path / "out.trec").read_text(encoding="utf-8").startswith("q1 Q0 ")
        (tmp_path / "out.trec").unlink()


def test_output_holds_something_else(
    refuses: Refuses,
    commands: Any,
    model: Path,
    collection: Path,
    settings: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter.tex").write_text("Years of work", encoding="utf-8")
    pretrain = training("pretrain", settings, collection, "--model", model)
    finetune = training("finetune", settings, collection, "--model", model)
    for command in (pretrain, finetune, ["index", collection]):
        assert "already holds something" in refuses(*command, "--output", foreign)
        assert "is a file" in refuses(*command, "--output", foreign / "chapter.tex")
    assert {file.name for file in foreign.iterdir()} == {"chapter.tex"}

    earlier = tmp_path / "earlier"
    commands.succeed(*pretrain, "--output", earlier)
    message = refuses(*pretrain, "--output", earlier, "--set", "training.seed=7")
    assert "already holds another job: it differs in settings.training.seed" in message
    assert "already holds another job" in refuses(*finetune, "--output", earlier)
    assert "already holds something" in refuses("index", collection, "--output", earlier)
    assert "complete already" in commands.succeed(*pretrain, "--output", earlier).stderr
