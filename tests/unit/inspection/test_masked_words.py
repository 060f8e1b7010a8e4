"""How often a recipe masks the words of a text: chances that follow from plain counts."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from tests.factories import write_corpus
from typer.testing import CliRunner

import isthmus
from isthmus.cli import app
from isthmus.errors import InputError, SettingsError
from isthmus.text.new_tokenizer import new_tokenizer
from isthmus.text.tokenizer import Tokenizer

TEXTS = ["a cat sat on a mat", "a dog sat on a mat", "the end of a dog", "the cat ran to the end"]
TEXT = "the cat sat on a dog"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`corpus.jsonl`, and `tokenizer` with a token for every word, without a model."""
    folder = tmp_path_factory.mktemp("masked")
    write_corpus(folder / "corpus.jsonl", {str(n): text for n, text in enumerate(TEXTS)})
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


def test_importance_decides_what_is_masked(folder: Path, tmp_path: Path) -> None:
    tokens = Tokenizer.load(str(folder / "tokenizer")).backend.encode(TEXT).tokens[1:-1]
    assert tokens == TEXT.split(), "a word is a token"
    recipe = tmp_path / "sharp.yaml"
    recipe.write_text("verb: pretrain\nbase: cdmae\nsettings: {decoder_corruption: {sigma: 0.0}}\n")
    model, corpus = str(folder / "tokenizer"), str(folder / "corpus.jsonl")
    draws = {"draws": 500}
    found = isthmus.inspect(model, TEXT, recipe=recipe, corpus=corpus, settings=draws)
    (masked,) = found.masked
    words = TEXT.split()
    assert [one.word for one in masked.words] == words
    expected = [plain_importance(words, place) for place in range(len(words))]
    most = sorted(range(len(words)), key=lambda place: -expected[place])[:3]
    for place, one in enumerate(masked.words):
        # Without noise the half that is most important, always.
        assert one.chances["decoder_corruption"] == (place in most)
        assert one.chances["corruption"] == pytest.approx(2 / 6, abs=0.1)
    assert "cat" in str(found)


def test_nested_masks_hold_the_encoders(folder: Path) -> None:
    found = isthmus.inspect(str(folder / "tokenizer"), TEXT, recipe="lexmae", settings={"draws": 1})
    chances = [one.chances for one in found.masked[0].words]
    assert all(one["decoder_corruption"] >= one["corruption"] for one in chances)
    assert sum(one["decoder_corruption"] for one in chances) == 3


def test_the_command(folder: Path) -> None:
    words = ["inspect", str(folder / "tokenizer"), TEXT, "--recipe", "retromae", "--json", "-q"]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    first = json.loads(ended.stdout)["masked"][0]["words"][0]
    assert 0.4 < first["chances"]["decoder"] < 0.8, "half of the others, and itself"


@pytest.mark.parametrize(
    ("texts", "recipe", "more", "error", "what"),
    [
        ([TEXT], "cdmae", {}, SettingsError, "by the n-grams of a corpus, and there is none"),
        (["the", " "], "mlm", {}, InputError, "TEXT 2 has no tokens"),
        ([TEXT], "mlm", {"beside": "other"}, SettingsError, "is asked of texts alone"),
        ([], "mlm", {}, SettingsError, "is asked of texts alone"),
    ],
)
def test_refusals(
    folder: Path, texts: list[str], recipe: str, more: dict[str, str], error: type, what: str
) -> None:
    with pytest.raises(error, match=what):
        isthmus.inspect(str(folder / "tokenizer"), texts, recipe=recipe, **more)  # type: ignore[arg-type]
