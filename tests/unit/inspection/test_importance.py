"""Importance of one text's words: AMI from plain counts, and chances that follow it."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

import isthmus
from isthmus.cli import app
from isthmus.errors import InputError
from isthmus.text.new_tokenizer import new_tokenizer
from isthmus.text.tokenizer import Tokenizer

TEXTS = ["a cat sat on a mat", "a dog sat on a mat", "the end of a dog", "the cat ran to the end"]
TEXT = "the cat sat on a dog"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`corpus.jsonl`, and `tokenizer` with a token for every word."""
    folder = tmp_path_factory.mktemp("importance")
    lines = [json.dumps({"_id": str(n), "text": text}) for n, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    new_tokenizer(TEXTS * 9, 200).save(folder / "tokenizer")
    return folder


def mutual_information(words: list[str]) -> float:
    """PMI by counting words."""
    counts = {
        n: Counter(
            tuple(t.split()[k : k + n]) for t in TEXTS for k in range(len(t.split()) - n + 1)
        )
        for n in (1, len(words))
    }
    count = counts[len(words)][tuple(words)]
    if not count:
        return 0.0
    value = math.log(count / counts[len(words)].total())
    return value - sum(math.log(counts[1][word,] / counts[1].total()) for word in words)


def plain_importance(words: list[str], place: int) -> float:
    begun = [words[place : place + n] for n in (2, 3, 4) if place + n <= len(words)]
    ended = [words[place - n + 1 : place + 1] for n in (2, 3, 4) if place - n + 1 >= 0]
    return sum(sum(map(mutual_information, some)) / len(some) for some in (begun, ended) if some)


def test_importance_decides_what_is_hidden(folder: Path) -> None:
    tokens = Tokenizer.load(str(folder / "tokenizer")).backend.encode(TEXT).tokens[1:-1]
    assert tokens == TEXT.split(), "a word is a token"
    found = isthmus.importance(
        TEXT, str(folder / "corpus.jsonl"), str(folder / "tokenizer"), draws=500,
        settings={"decoder_corruption.sigma": 0.0},
    )  # fmt: skip
    words = TEXT.split()
    assert [one.word for one in found.words] == words
    expected = [plain_importance(words, place) for place in range(len(words))]
    assert [one.importance for one in found.words] == pytest.approx(expected, abs=1e-5)
    assert list(found.words[0].hidden) == [
        "uniform at 0.3", "uniform at 0.5", "the decoder's importance at 0.5"
    ]  # fmt: skip
    most = sorted(range(len(words)), key=lambda place: -expected[place])[:3]
    for place, one in enumerate(found.words):
        # Without noise the half that is most important, always.
        assert one.hidden["the decoder's importance at 0.5"] == (place in most)
        assert one.hidden["uniform at 0.3"] == pytest.approx(2 / 6, abs=0.1)
    assert "cat" in str(found)


def test_the_command(folder: Path) -> None:
    words = ["--corpus", str(folder / "corpus.jsonl"), "--model", str(folder / "tokenizer")]
    ended = CliRunner().invoke(
        app, ["importance", TEXT, *words, "--recipe", "retromae", "--draws", "3", "--json", "-q"]
    )
    assert ended.exit_code == 0, ended.output
    first = json.loads(ended.stdout)["words"][0]
    assert 0 < first["hidden"]["the decoder's enhanced decoding at 0.5"] < 1
    with pytest.raises(InputError, match="the text has no tokens"):
        isthmus.importance(" ", words[1], words[3])
