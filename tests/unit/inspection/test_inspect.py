"""What vectors hold: named tokens, marks, coverage curves, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer
from typer.testing import CliRunner

import isthmus
from isthmus.cli import app
from isthmus.encoders.light_dense import QuickEncoder
from isthmus.errors import InputError, SettingsError
from isthmus.inspection import inspect as module
from isthmus.inspection.inspected import NamedTokens
from isthmus.records import Document

TEXT = "The river bank of monday and a boat."


def contents(small: Path) -> list[str]:
    corpus = isthmus.open_corpus(str(small / "corpus.jsonl"))
    return [document.contents() for document in corpus.documents()]


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
    found = isthmus.inspect(str(small / "cls"), TEXT, beside=str(small / "other"), top=15)
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
        assert one.terms is one.expansion is one.dropped is None
    assert "✓" in str(found) or "✗" in str(found)
    assert found.coverage is None


def test_a_sparse_vector_has_terms_expansions_and_what_it_dropped(small: Path) -> None:
    encoder = isthmus.load_encoder(str(small / "sparse"), exact=True)  # type: ignore[call-arg]
    found = isthmus.inspect(encoder, TEXT, top=4)  # type: ignore[arg-type]
    one: NamedTokens = found.texts[0].models[0]
    weights = dict(encoder.terms(encoder.encode_documents([Document("", TEXT)])))  # type: ignore[union-attr, arg-type]
    own = set(AutoTokenizer.from_pretrained(small / "sparse").tokenize(TEXT))
    assert one.terms == len(own & set(weights))
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


def test_the_encoder_of_a_searcher_is_loaded_whole(small: Path, tmp_path: Path) -> None:
    corpus, exact = str(small / "corpus.jsonl"), {"encoding.backend": "torch-float32"}
    isthmus.index(corpus, tmp_path / "index", str(small / "cls"), settings=exact)
    encoder = isthmus.open_searcher(tmp_path / "index").encoder
    assert isinstance(encoder, QuickEncoder), "which has no head"
    found = isthmus.inspect(encoder, TEXT).texts
    assert found == isthmus.inspect(str(small / "cls"), TEXT).texts


def test_queries_are_read_as_queries(small: Path) -> None:
    encoder = isthmus.load_encoder(
        str(small / "cls"), {"query_prompt": "boat boat ", "query_max_length": 6}
    )
    alike, apart = (
        isthmus.inspect(encoder, TEXT, queries=queries).texts[0].models[0]  # type: ignore[arg-type]
        for queries in (False, True)
    )
    assert [one.weight for one in alike.tokens] != [one.weight for one in apart.tokens]
    assert alike.coverage != apart.coverage, "of three tokens, beside prompt and special ones"


def test_coverage_is_that_of_the_probe(small: Path, tmp_path: Path) -> None:
    corpus, model = str(small / "corpus.jsonl"), str(small / "cls")
    ks = {"k": [64, 3, 100_000]}
    found = isthmus.inspect(model, coverage=corpus, output=tmp_path / "out", settings=ks).coverage
    assert found is not None
    settings = {"measure": {"coverage": {"k": 64}}, "max_length": 64}
    probed = isthmus.probe(model, corpus, settings=settings).values[model]
    assert (found.k, found.documents) == ((3, 64, 100_000), 25)
    assert found.models[model][1] == pytest.approx(probed["coverage"], abs=1e-6)
    assert found.constant[1] == pytest.approx(probed["coverage/constant"], abs=1e-6)
    assert found.ceiling[1] == pytest.approx(probed["coverage/ceiling"], abs=1e-6)
    assert found.models[model][2] == found.constant[2] == found.ceiling[2] == pytest.approx(1)
    assert found.models[model] == tuple(sorted(found.models[model]))
    files = {file.name for file in (tmp_path / "out").iterdir() if file.suffix != ".lock"}
    drawn = {"isthmus.json", "inspection.json", "coverage.tsv", "coverage.md", "coverage.svg"}
    assert drawn <= files
    lines = (tmp_path / "out" / "coverage.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0].split("\t") == ["k", model, "constant", "ceiling"]
    assert float(lines[2].split("\t")[1]) == pytest.approx(found.models[model][1], abs=1e-6)


def test_what_a_sparse_vector_drops_is_never_covered(small: Path) -> None:
    corpus, model = str(small / "corpus.jsonl"), str(small / "sparse")
    found = isthmus.inspect(model, contents(small), coverage=corpus, settings={"k": [100_000]})
    assert found.coverage is not None
    kept = [one.models[0] for one in found.texts]
    shares = [one.terms / (one.terms + len(one.dropped)) for one in kept]  # type: ignore[operator, arg-type]
    assert found.coverage.models[model] == pytest.approx((np.mean(shares),))
    assert found.coverage.models[model][0] < 1


@pytest.mark.parametrize(
    ("model", "texts", "error", "what"),
    [
        ("cls", [], SettingsError, "neither a text to inspect nor a corpus"),
        ("cls", ["fine", "  "], InputError, "TEXT 2 has no tokens"),
        ("nowhere", [TEXT], InputError, "no model folder"),
    ],
)
def test_refusals(small: Path, model: str, texts: list[str], error: type, what: str) -> None:
    with pytest.raises(error, match=what):
        isthmus.inspect(str(small / model), texts)


def test_a_model_without_a_head_is_refused_before_weights_are_loaded(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(module, "load_encoder", loaded)
    models = [str(small / name) for name in ("cls", "sparse", "headless")]
    for more in ({}, {"coverage": str(small / "corpus.jsonl")}):
        with pytest.raises(InputError, match="headless has no masked-LM head"):
            isthmus.inspect(models[0], TEXT, beside=models[1:], **more)
    for model in models[:2]:  # which have one
        with pytest.raises(AssertionError, match="weights are loaded"):
            isthmus.inspect(model, TEXT)


def test_the_command(small: Path) -> None:
    words = ["inspect", str(small / "cls"), TEXT, "a dog", "--beside", str(small / "other")]
    said = ["--top", "5", "--json", "--quiet"]
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
