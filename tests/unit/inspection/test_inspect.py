"""What vectors hold and recipes mask: tokens, marks, coverage, chances, and what is refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from tests.factories import write_corpus
from transformers import AutoModelForMaskedLM, AutoTokenizer

import isthmus
from isthmus import research
from isthmus.cli import app
from isthmus.errors import InputError, SettingsError
from isthmus.inspection import inspect as module
from isthmus.inspection.inspect import NamedTokens
from isthmus.records import Document
from isthmus.text.tokenizer import Tokenizer, new_tokenizer

TEXT = "The river bank of monday and a boat."


def named_by_transformers(folder: Path, mean: bool, top: int) -> dict[str, float]:
    """The tokens that the pooled state of TEXT predicts, without a line of isthmus."""
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        states = model.bert(**tokenizer(TEXT, return_tensors="pt")).last_hidden_state[0]
        logits = model.cls(states.mean(0, True) if mean else states[:1])[0]
    values, places = logits.topk(top)
    tokens = tokenizer.convert_ids_to_tokens(places.tolist())
    return dict(zip(tokens, values.tolist(), strict=True))


def test_tokens_are_those_of_the_masked_lm_head(small: Path) -> None:
    found = research.inspect(
        str(small / "cls"), [TEXT], compare=[str(small / "other")], settings={"top": 15}
    )
    (text,) = found.texts
    own = set(AutoTokenizer.from_pretrained(small / "cls").tokenize(TEXT))
    for one, name, mean in zip(text.models, ("cls", "other"), (False, True), strict=True):
        expected = named_by_transformers(small / name, mean, 15)
        assert one.model == str(small / name)
        assert one.kind == "dense"
        assert [token.token for token in one.tokens] == list(expected)
        weights = [token.weight for token in one.tokens]
        assert weights == pytest.approx(list(expected.values()), abs=1e-4)
        assert [token.in_text for token in one.tokens] == [token in own for token in expected]
        assert one.coverage == pytest.approx(len(own & set(expected)) / len(own))
        assert one.expansion is one.dropped is None
    assert "✓" in str(found) or "✗" in str(found)
    assert found.coverage is None


def test_a_sparse_vector_has_terms_expansions_and_what_it_dropped(small: Path) -> None:
    encoder = isthmus.load_encoder(str(small / "sparse"), exact=True)  # type: ignore[call-arg]
    found = research.inspect(str(small / "sparse"), [TEXT], settings={"top": 4})
    one: NamedTokens = found.texts[0].models[0]
    weights = dict(encoder.terms(encoder.encode_documents([Document("", TEXT)])))  # type: ignore[union-attr, arg-type]
    own = set(AutoTokenizer.from_pretrained(small / "sparse").tokenize(TEXT))
    assert one.coverage == len(own & set(weights)) / len(own)
    assert one.expansion == len(set(weights) - own)
    assert set(one.dropped or ()) == own - set(weights)
    assert one.dropped, "so that this test sees some"
    others = [token for token in weights if token not in own][:4]
    shown = {token.token: token.weight for token in one.tokens}
    assert shown == pytest.approx(
        {token: weight for token, weight in weights.items() if token in own or token in others}
    )
    assert all(token.in_text == (token.token in own) for token in one.tokens)
    assert "dropped" in str(found)


def test_coverage_is_that_of_the_probe(small: Path, tmp_path: Path) -> None:
    corpus, models = str(small / "corpus.jsonl"), [str(small / "cls"), str(small / "other")]
    settings = {"k": [64, 3, 100_000]}
    for _ in range(2):  # the same call finds its own folder
        found = research.inspect(
            models[0],
            compare=[models[1]],
            coverage=corpus,
            output=tmp_path / "out",
            settings=settings,
        ).coverage
    probed = research.probe(
        models,
        documents=corpus,
        settings={"measure": {"coverage": {"k": 64}}, "max_length": 64},
    )
    assert found is not None
    assert {*found} == {*models, "most frequent", "ceiling"}
    for name in models:
        assert found[name][64] == pytest.approx(probed.values[name]["coverage"], abs=1e-6)
        assert list(found[name]) == [3, 64, 100_000]
        assert found[name][100_000] == pytest.approx(1)
    lines = (("most frequent", "coverage/constant"), ("ceiling", "coverage/ceiling"))
    for line, name in lines:
        assert found[line][64] == pytest.approx(probed.values[models[0]][name], abs=1e-6)
    assert {"report.json", "table.md"} <= {file.name for file in (tmp_path / "out").iterdir()}
    assert "Coverage" in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("model", "texts", "error", "what"),
    [
        ("cls", [], SettingsError, "neither a text to inspect nor documents"),
        ("cls", ["fine", "  "], InputError, "the text '  ' has no tokens"),
        ("nowhere", [TEXT], InputError, "no model folder"),
    ],
)
def test_refusals(small: Path, model: str, texts: list[str], error: type, what: str) -> None:
    with pytest.raises(error, match=what):
        research.inspect(str(small / model), texts)


def test_a_model_without_a_head_is_refused_before_weights_are_loaded(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(module, "load_encoder", loaded)
    models = [str(small / name) for name in ("cls", "sparse", "headless")]
    for more in ({}, {"coverage": str(small / "corpus.jsonl")}):
        with pytest.raises(InputError, match="headless has no masked-LM head"):
            research.inspect(models[0], [TEXT], compare=models[1:], **more)
    for model in models[:2]:  # which have one
        with pytest.raises(AssertionError, match="weights are loaded"):
            research.inspect(model, [TEXT])


def test_the_command(small: Path) -> None:
    words = ["research", "inspect", str(small / "cls"), TEXT, "a dog"]
    words += ["--compare", str(small / "other")]
    said = ["--set", "top=5", "--json", "--quiet"]
    ended = CliRunner().invoke(app, [*words, *said])
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    assert found["coverage"] is None
    assert [one["text"] for one in found["texts"]] == [TEXT, "a dog"]
    assert all(len(one["tokens"]) == 5 for text in found["texts"] for one in text["models"])
    assert set(found["texts"][0]["models"][0]["tokens"][0]) == {"token", "weight", "in_text"}
    ended = CliRunner().invoke(app, [*words, "--quiet"])
    assert ended.exit_code == 0
    assert "coverage" in ended.stdout


CORPUS = ["a cat sat on a mat", "a dog sat on a mat", "the end of a dog", "the cat ran to the end"]
SENTENCE = "the cat sat on a dog"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with a token for every word, without a model, next to `corpus.jsonl`."""
    folder = tmp_path_factory.mktemp("masked") / "tokenizer"
    new_tokenizer([*CORPUS * 9], 200).save(folder)
    write_corpus(folder / "corpus.jsonl", {str(n): text for n, text in enumerate(CORPUS)})
    return folder


def mutual_information(words: list[str]) -> float:
    """PMI by counting words."""
    texts = [*CORPUS, SENTENCE]
    counts = {
        n: Counter(
            tuple(t.split()[k : k + n]) for t in texts for k in range(len(t.split()) - n + 1)
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


def test_importance_decides_what_is_masked(tokenizer: Path, tmp_path: Path) -> None:
    tokens = Tokenizer.load(str(tokenizer)).backend.encode(SENTENCE).tokens[1:-1]
    assert tokens == SENTENCE.split(), "a word is a token"
    recipe = tmp_path / "sharp.yaml"
    recipe.write_text("verb: pretrain\nbase: cdmae\nsettings: {decoder_corruption: {sigma: 0.0}}\n")
    corpus = str(tokenizer / "corpus.jsonl")
    found = research.inspect(str(tokenizer), [SENTENCE], recipe=recipe, coverage=corpus)
    (masked,) = found.masked
    words = SENTENCE.split()
    assert [word for word, _ in masked.words] == words
    expected = [plain_importance(words, place) for place in range(len(words))]
    most = sorted(range(len(words)), key=lambda place: -expected[place])[:3]
    for place, (_, chances) in enumerate(masked.words):
        # Without noise the half that is most important, always.
        assert chances["decoder_corruption"] == (place in most)
        assert chances["corruption"] == pytest.approx(2 / 6, abs=0.1)
    assert "cat" in str(found)


def test_nested_masks_hold_the_encoders(tokenizer: Path) -> None:
    found = research.inspect(str(tokenizer), [SENTENCE], recipe="lexmae")
    chances = [one for _, one in found.masked[0].words]
    assert all(one["decoder_corruption"] >= one["corruption"] for one in chances)
    assert sum(one["decoder_corruption"] for one in chances) == pytest.approx(3)


def test_the_command_of_a_recipe(tokenizer: Path) -> None:
    words = ["research", "inspect", str(tokenizer), SENTENCE, "-r", "retromae", "--json", "-q"]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    _, chances = json.loads(ended.stdout)["masked"][0]["words"][0]
    assert 0.15 < chances["corruption"] < 0.45, "three of ten"


@pytest.mark.parametrize(
    ("texts", "compare", "error", "what"),
    [
        (["the", " "], [], InputError, "the text ' ' has no tokens"),
        ([SENTENCE], ["other"], SettingsError, "with the tokenizer of one model"),
        ([], [], SettingsError, "what it masks in texts"),
    ],
)
def test_what_cannot_be_masked(
    tokenizer: Path, texts: list[str], compare: list[str], error: type, what: str
) -> None:
    with pytest.raises(error, match=what):
        research.inspect(str(tokenizer), texts, compare=compare, recipe="mlm")
