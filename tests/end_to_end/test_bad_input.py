"""What the user got wrong ends in a message that says what to do, exit code 2 and no traceback."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
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
    message = refuses("index", "--corpus", missing, "--output", tmp_path / "index")
    assert f"there is no file or folder '{missing}'" in message
    assert f"expected: {tmp_path / 'documents.jsonl'}\n" in message
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_empty_corpus(refuses: Refuses, model: Path, content: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(content, encoding="utf-8")
    for command in (
        ["index", "--corpus", corpus],
        ["index", "--corpus", corpus, "--model", model],
        ["pretrain", "--corpus", corpus, "--model", model],
        ["pretrain", "--corpus", corpus, "--init", "tiny"],
    ):
        message = refuses(*command, "--output", tmp_path / "output")
        assert "is empty" in message or "no document" in message
        assert str(corpus) in message
        shutil.rmtree(tmp_path / "output", ignore_errors=True)


def test_folder_where_a_file_should_be(refuses: Refuses, beir: Path, tmp_path: Path) -> None:
    (beir / "corpus.jsonl").unlink()
    (beir / "corpus.jsonl").mkdir()
    message = refuses("index", "--corpus", f"jsonl:{beir}", "--output", tmp_path / "index")
    assert "is a folder where a file should be" in message
    message = refuses("evaluate", beir, "--qrels", beir / "qrels" / "train.tsv")
    assert f"'{beir}' is a folder where a file should be" in message


def test_bytes_that_are_not_utf8(refuses: Refuses, model: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"_id": str(number), "text": "a word"}).encode() for number in range(3)]
    lines[1] = '{"_id": "1", "text": "café"}'.encode("latin-1")
    corpus.write_bytes(b"\n".join(lines) + b"\n")
    unweighted = tmp_path / "model"  # found only after the documents were read
    shutil.copytree(model, unweighted, ignore=shutil.ignore_patterns("*.safetensors"))
    for retriever in ("bm25", unweighted):
        message = refuses(
            "index", "--corpus", corpus, "--model", retriever, "--output", tmp_path / "index"
        )
        assert f"{corpus}:2" in message
        assert "byte 0xe9" in message
        assert "iconv" in message

    whole = tmp_path / "whole.jsonl"
    whole.write_text('{"_id": "1", "text": "a word"}\n')
    message = refuses(
        "index", "--corpus", whole, "--model", unweighted, "--output", tmp_path / "index"
    )
    assert "has no model.safetensors" in message
    assert "damaged" not in message


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
    command = training("finetune", settings, "--model", model, "--collection", beir)
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
    command = training("finetune", settings, "--model", model, "--collection", beir)
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
    command = training("finetune", settings, "--model", model, "--collection", beir)
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
        commands.succeed("index", "--corpus", collection, "--model", retriever, "--output", index)
        assert "no words to search for" in refuses("search", index, "\u200b")
        # One of many is no reason to leave the others unanswered.
        told = commands.succeed(
            "search", index, "--queries", queries, "--run", tmp_path / "out.trec"
        )
        assert "1 of 2 queries have no words to search for" in " ".join(told.stderr.split())
        assert "'q2'" in told.stderr
        assert (tmp_path / "out.trec").read_text(encoding="utf-8").startswith("q1 Q0 ")
        (tmp_path / "out.trec").unlink()


def test_model_folder_without_tokenizer(
    refuses: Refuses,
    model: Path,
    collection: Path,
    settings: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(model / "final", bare)
    for file in (*bare.glob("*token*"), *bare.glob("vocab*")):
        file.unlink()
    for command in (
        ["index", "--corpus", collection],
        training("pretrain", settings, "--corpus", collection),
        training("finetune", settings, "--collection", collection),
    ):
        message = refuses(*command, "--model", bare, "--output", tmp_path / "output")
        assert f"the model folder '{bare}' has no tokenizer" in message
        shutil.rmtree(tmp_path / "output", ignore_errors=True)


def test_model_folder_without_model(refuses: Refuses, collection: Path, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    message = refuses(
        "index", "--corpus", collection, "--model", missing, "--output", tmp_path / "index"
    )
    assert f"there is no model folder '{missing}'" in message


def test_misspelt_key(refuses: Refuses, collection: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    text = (
        "verb: pretrain\nsettings:\n  objectives: {masked_lm: {}}\n  training: {lerning_rate: 1}\n"
    )
    recipe.write_text(text, encoding="utf-8")
    command = ["pretrain", "--corpus", collection, "--init", "tiny", "--output", tmp_path / "out"]
    message = refuses(*command, "--recipe", recipe)
    assert "unknown key 'training.lerning_rate'" in message
    assert str(recipe) in message
    assert "expected: learning_rate" in message
    message = refuses(*command, "--set", "objectives.bag_of_word.weight=1")
    assert "no objective named 'bag_of_word'" in message
    assert "expected: bag_of_words" in message
    message = refuses(*command, "--recipe", "bag")
    assert "no recipe named 'bag'" in message
    assert not (tmp_path / "out").exists()


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
    pretrain = training("pretrain", settings, "--corpus", collection, "--model", model)
    finetune = training("finetune", settings, "--collection", collection, "--model", model)
    for command in (pretrain, finetune, ["index", "--corpus", collection]):
        assert "already holds something" in refuses(*command, "--output", foreign)
        assert "is a file" in refuses(*command, "--output", foreign / "chapter.tex")
    assert {file.name for file in foreign.iterdir()} == {"chapter.tex"}

    earlier = tmp_path / "earlier"
    commands.succeed(*pretrain, "--output", earlier)
    message = refuses(*pretrain, "--output", earlier, "--set", "training.seed=7")
    assert "already holds another job: it differs in settings.training.seed" in message
    assert "already holds another job" in refuses(*finetune, "--output", earlier)
    assert "already holds something" in refuses(
        "index", "--corpus", collection, "--output", earlier
    )
    assert "complete already" in commands.succeed(*pretrain, "--output", earlier).stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a disk of so many KiB, where that is allowed."""
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        folder = tmp_path / f"disk-{size}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a small disk needs root")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


# From too small for the first file to too small for the last.
@pytest.mark.parametrize(
    ("verb", "kilobytes"),
    [
        *(("pretrain", size) for size in (8, 1_000, 2_200)),
        *(("finetune", size) for size in (60, 1_000, 2_200)),
        *(("index", size) for size in (8, 140)),
        *(("bm25", size) for size in (8, 100)),
    ],
)
def test_no_disk_space_left(
    refuses: Refuses,
    model: Path,
    collection: Path,
    settings: Callable[..., list[str]],
    small_disk: Callable[[int], Path],
    verb: str,
    kilobytes: int,
) -> None:
    command = {
        "pretrain": training("pretrain", settings, "--corpus", collection, "--model", model),
        "finetune": training("finetune", settings, "--collection", collection, "--model", model),
        "index": ["index", "--corpus", collection, "--model", model],
        "bm25": ["index", "--corpus", collection],
    }[verb]
    disk = small_disk(kilobytes)
    attempts = 2 if kilobytes == 8 else 1  # what the first leaves is not in the way of the next
    for _ in range(attempts):
        message = refuses(*command, "--output", disk / "output")
        assert "no space left on the disk" in message
        assert "MiB free" in message


def test_no_room_for_a_large_file(commands: Any, collection: Path, tmp_path: Path) -> None:
    """The same without root: the system refuses files that grow beyond a limit."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    command = [sys.executable, "-m", "isthmus", "index", "--corpus", str(collection)]
    command += ["--output", str(tmp_path / "index")]
    refused = subprocess.run(
        command, env=commands.environment, preexec_fn=limit, capture_output=True, text=True
    )
    assert refused.returncode == 2, refused.stderr
    assert "larger than is allowed" in refused.stderr
