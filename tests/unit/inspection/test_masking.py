"""What a masking hides: counted again in plain loops, and on real questions and answers."""

from __future__ import annotations

import io
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import isthmus.inspection.masking as masking_module
from isthmus.cli import app
from isthmus.collections import Problems
from isthmus.collections.files import lines
from isthmus.errors import InputError, SettingsError
from isthmus.inspection.masking import MaskingReport, masking
from isthmus.nn.backbone import Backbone
from isthmus.nn.randomness import key
from isthmus.pretraining.corruption._budget import MaskingSettings
from isthmus.pretraining.corruption.whole_word import WholeWord
from isthmus.pretraining.labels import Vocabulary
from isthmus.records import Document
from isthmus.text.corpus import tokenise
from isthmus.text.new_tokenizer import new_tokenizer
from isthmus.text.ngrams import count_ngrams
from isthmus.text.tokenizer import Tokenizer

STOP_WORDS = ["the", "on", "of", "a"]
TEXTS = [
    "The cat sat on the mat, quickly.",
    "A dog ran; the dog of the end!",
    "ж ж ж ж ж the [MASK] catdog ж",  # what the tokenizer does not know, and a special token typed
    "",
    "the the the the on on of a mat",
    *["the cat of the dog sat on a mat quickly and the end of the cat"] * 7,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`corpus.jsonl` and `tokenizer`, a folder without any model."""
    folder = tmp_path_factory.mktemp("masking")
    lines = [json.dumps({"_id": str(n), "text": text}) for n, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    new_tokenizer([text for text in TEXTS if "ж" not in text], 44).save(folder / "tokenizer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ISTHMUS_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may load a model."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr(Backbone, "load", refuse)


def report(folder: Path, recipe: str, *changes: str, **options: Any) -> MaskingReport:
    overrides = ("problems=skip", *changes)
    corpus, tokenizer = str(folder / "corpus.jsonl"), str(folder / "tokenizer")
    options = {"stop_words": STOP_WORDS, **options}
    return masking(corpus, tokenizer, recipe, settings=overrides, **options)


def readable(tokenizer: Tokenizer, ids: list[int]) -> str:
    pieces = tokenizer.pretrained.convert_ids_to_tokens(ids)
    return "".join(piece.removeprefix("##") for piece in pieces)


def is_stop(word: str) -> bool:
    return word in STOP_WORDS or not any(character.isalnum() for character in word)


def test_everything_is_counted_as_a_plain_loop_counts_it(folder: Path) -> None:
    found = report(folder, "mlm", "corruption={name: whole_word, rate: 0.4}", "max_length=30")
    tokenizer = Tokenizer.load(str(folder / "tokenizer"))
    vocabulary = Vocabulary(tokenizer, len(tokenizer))
    hide = WholeWord(MaskingSettings(rate=0.4))
    text, hidden = Counter[str](), Counter[str]()
    documents = [line for line in TEXTS if line]  # an empty one is skipped when it is read
    for row, line in enumerate(documents):
        encoding = tokenizer.backend.encode(line, add_special_tokens=False)
        ids, words = encoding.ids[:28], encoding.word_ids[:28]
        batch = {
            "input_ids": torch.tensor([[2, *ids, 3]]),
            "words": torch.tensor([[-1, *(-1 if w is None else w for w in words), -1]]),
            "keys": torch.tensor([key(42, 0, row)]),
        }
        chosen = hide.choose(batch, vocabulary)[0, 1:-1].tolist()
        for _, group in itertools.groupby(range(len(ids)), key=words.__getitem__):
            places = [place for place in group if ids[place] > 4]
            if places:
                word = readable(tokenizer, [ids[place] for place in places])
                text[word] += len(places)
                taken = [chosen[place] for place in places]
                assert all(taken) or not any(taken), "whole words"
                hidden[word] += sum(taken)
    assert found.documents == len(documents)
    assert set(found.strategies) == {"uniform at 0.4", "the encoder's whole word at 0.4"}
    for strategy, counts in (
        (found.text, text),
        (found.strategies["the encoder's whole word at 0.4"], +hidden),
    ):
        assert strategy.words == counts
        assert strategy.tokens == counts.total()
        stops = sum(count for word, count in counts.items() if is_stop(word))
        assert strategy.stop_tokens == stops
        assert strategy.stop_share == pytest.approx(stops / counts.total())
    assert found.strategies["uniform at 0.4"].tokens < found.text.tokens / 2
    assert text.keys() >= {"the", "cat", ",", "mat"}
    assert "" not in found.importance, "special tokens are no words"
    assert not {"[UNK]", "[MASK]", ""} & found.text.words.keys()


def test_importance_is_told_of_words_seen_often_enough(folder: Path) -> None:
    found = report(folder, "cdmae", "max_length=144")
    counts = Counter(" ".join(TEXTS[4:]).split())
    for word in ("the", "cat", "of", "quickly"):
        mean, occurrences = found.importance[word]
        assert np.isfinite(mean)
        assert occurrences >= counts[word]
    assert "ran" not in found.importance, "seen once"
    assert found.importance["quickly"][0] > found.importance["the"][0]


def test_stop_words_are_a_choice(folder: Path) -> None:
    english = report(folder, "mlm", stop_words=["the"]).text
    none = report(folder, "mlm", stop_words=[]).text
    assert english.words == none.words
    assert english.stop_tokens - none.stop_tokens == none.words["the"]


def test_a_sample_of_documents(folder: Path) -> None:
    assert report(folder, "mlm", documents=3).documents == 3
    assert report(folder, "mlm", documents=1).documents == 1
    assert report(folder, "mlm", documents=10_000).documents == len(TEXTS) - 1


def test_nested_and_generated_maskings_need_no_model(folder: Path) -> None:
    nested = report(folder, "lexmae").strategies
    assert set(nested) == {"uniform at 0.3", "uniform at 0.5", "the decoder's nested at 0.5"}
    assert nested["the decoder's nested at 0.5"].tokens > nested["uniform at 0.3"].tokens
    # The encoder's side is uniform, and drawn from the same keys as what is shown beside it.
    for seed in range(5):
        one = report(folder, "lexmae", f"training.seed={seed}", documents=1).strategies
        assert one["the decoder's nested at 0.5"].words >= one["uniform at 0.3"].words
    generated = report(folder, "simlm").strategies
    assert set(generated) == {
        "uniform at 0.3", "the encoder's generator at 0.3",
        "uniform at 0.5", "the decoder's generator at 0.5",
    }  # fmt: skip
    chosen = generated["the decoder's generator at 0.5"]
    assert chosen.tokens == pytest.approx(generated["uniform at 0.5"].tokens, abs=2)
    both = report(folder, "cotmae").text
    assert both.tokens == 2 * report(folder, "mlm").text.tokens, "both texts of a document"


def test_a_corpus_without_a_token_is_refused(folder: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "empty.jsonl"
    corpus.write_text('{"_id": "1", "text": "\\u0301"}\n', encoding="utf-8")
    refused = "is longer than one token"
    with pytest.raises(InputError, match=refused):
        masking(str(corpus), str(folder / "tokenizer"), "mlm")
    corpus.write_text('{"_id": "1", "text": "a"}\n{"_id": "2", "text": "."}\n', encoding="utf-8")
    with pytest.raises(InputError, match=refused):  # as pretrain does
        masking(str(corpus), str(folder / "tokenizer"), "mlm")


def statistics_of(text: str, folder: Path, path: Path) -> Path:
    """N-gram statistics of another corpus, with the tokenizer of the one in `folder`."""
    tokenizer = Tokenizer.load(str(folder / "tokenizer"))
    document = Document("1", text)
    corpus = tokenise([document], text, tokenizer.serialised, workers=1, cache=path)
    return count_ngrams(corpus, tokenizer).folder


@pytest.mark.parametrize(
    ("recipe", "side"), [("cdmae", "decoder_corruption"), ("bow-pmi", "corruption")]
)
def test_statistics_are_those_the_recipe_names(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    side: str,
) -> None:
    statistics = statistics_of("the mat the mat the mat quickly of a cat", folder, tmp_path / "2")
    said: list[str] = []
    monkeypatch.setattr(masking_module, "notice", said.append)
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    given = report(folder, recipe, f"{side}.statistics={statistics}")
    assert said == [f"n-gram statistics: {statistics}"]
    assert not list((tmp_path / "cache").rglob("ngrams")), "counted for nothing"
    own = report(folder, recipe)
    assert said[1] != said[0]
    assert list((tmp_path / "cache").rglob("ngrams"))
    assert given.importance["cat"] != own.importance["cat"]


@pytest.mark.parametrize(
    ("recipe", "side"), [("cdmae", "decoder_corruption"), ("bow-pmi", "corruption")]
)
def test_memory_is_the_recipes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, side: str
) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path))
    with pytest.raises(SettingsError) as caught:
        report(folder, recipe, f"{side}.memory=0.001")
    assert "0.001 GiB of memory (1,073,741 bytes)" in caught.value.what
    assert f"{side}.memory" in caught.value.what
    enough = caught.value.expected.split()[0]
    assert f"set {side}.memory to {enough} or more" in caught.value.fix
    report(folder, recipe, f"{side}.memory={enough}")


def test_what_enhanced_decoding_hides(folder: Path) -> None:
    """Of n tokens, n rows of n, each the token itself and others half of the time."""
    found = report(folder, "retromae", "decoder.rate=0.25")
    hidden = found.strategies["the decoder's enhanced decoding at 0.25"]
    tokenizer = Tokenizer.load(str(folder / "tokenizer"))
    special = set(tokenizer.special_ids)
    expected = 0.0
    for text in TEXTS:
        encoding = tokenizer.backend.encode(text, add_special_tokens=False)
        n = sum(token not in special for token in encoding.ids)
        expected += n + 0.25 * n * (n - 1)
    assert hidden.tokens == pytest.approx(expected, rel=0.05)
    assert hidden.words.keys() == found.text.words.keys()


def test_what_is_printed(folder: Path) -> None:
    found = report(folder, "cdmae", words=3)
    console = Console(width=160, file=io.StringIO())
    with console.capture() as captured:
        console.print(found.table())
    printed = captured.get()
    share = f"{found.text.stop_share:.1%}"
    assert any("the text itself" in line and share in line for line in printed.splitlines())
    assert "by the decoder's importance at 0.5" in printed
    ranked = sorted(found.importance, key=lambda word: found.importance[word][0])
    for word in (*ranked[:3], *ranked[-3:]):
        assert word in printed
    uniform = found.strategies["uniform at 0.5"]
    assert f"the {uniform.words['the'] / uniform.tokens:.2%}" in printed


def command(folder: Path, *more: str) -> Any:
    arguments = ["masking", "--corpus", str(folder / "corpus.jsonl"), "--model"]
    arguments += [str(folder / "tokenizer"), "--recipe", "cdmae", "--set", "problems=skip", *more]
    return CliRunner().invoke(app, arguments)


def test_the_command_writes_json(folder: Path, tmp_path: Path) -> None:
    words = tmp_path / "stop.txt"
    words.write_text("\n".join([*STOP_WORDS, "CAT"]) + "\n", encoding="utf-8")
    output = tmp_path / "seen.json"
    result = command(folder, "--stop-words", str(words), "--output", str(output))
    assert result.exit_code == 0, result.output
    assert "share of what is hidden" in result.output
    written = json.loads(output.read_text(encoding="utf-8"))
    expected = report(folder, "cdmae", stop_words=[*STOP_WORDS, "cat"])
    assert written["documents"] == expected.documents
    assert set(written["strategies"]) == {"text", *expected.strategies}
    for name, hidden in {"text": expected.text, **expected.strategies}.items():
        assert written["strategies"][name] == {
            "tokens": hidden.tokens,
            "stop_share": hidden.stop_share,
            "words": dict(hidden.words),
        }
    assert expected.text.stop_share > report(folder, "cdmae").text.stop_share, "CAT is one too"
    for word, (mean, count) in expected.importance.items():
        assert written["importance"][word] == {"mean": mean, "occurrences": count}


@pytest.mark.parametrize(
    ("content", "what"),
    [(None, "there is no file"), (b"", "is empty"), (b"the\n\xff\n", "is not UTF-8")],
)
def test_stop_words_that_cannot_be_read(
    folder: Path, tmp_path: Path, content: bytes | None, what: str
) -> None:
    file = tmp_path / "words.txt"
    if content is not None:
        file.write_bytes(content)
    result = command(folder, "--stop-words", str(file))
    assert isinstance(result.exception, InputError)
    assert what in result.exception.what
    assert str(file) in result.exception.what
    assert result.exception.fix


def test_importance_hides_fewer_stop_words_of_real_answers(
    shared_data: Path, folder: Path, tmp_path: Path
) -> None:
    source = shared_data / "collections" / "insuranceqa" / "corpus.jsonl.zst"
    corpus = tmp_path / "answers.jsonl"
    texts = []
    with corpus.open("w", encoding="utf-8") as out:
        for _, line in itertools.islice(lines(source, Problems()), 1500):
            texts.append(json.loads(line)["text"])
            out.write(f"{line}\n")
    new_tokenizer(texts, 4000).save(tmp_path / "tokenizer")
    found = masking(str(corpus), str(tmp_path / "tokenizer"), "cdmae", documents=300)
    uniform = found.strategies["uniform at 0.5"]
    important = found.strategies["the decoder's importance at 0.5"]
    assert important.tokens == pytest.approx(uniform.tokens, rel=0.02), "the same rate"
    assert uniform.stop_share == pytest.approx(found.text.stop_share, abs=0.01)
    assert 0.4 < uniform.stop_share < 0.65, "as in any English text"
    assert important.stop_share < uniform.stop_share - 0.1
    ranked = sorted(found.importance, key=lambda word: -found.importance[word][0])
    assert not {"the", "of", "a", "."} & set(ranked[: len(ranked) // 2])
