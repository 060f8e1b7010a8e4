"""Probes of checkpoints side by side: what each has, on which documents, and what is refused.

That the numbers are those of a training's probes, tests/end_to_end/test_probes.py sees.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.factories import write_corpus
from transformers import BertModel

from isthmus import research
from isthmus.cli import app
from isthmus.errors import SettingsError
from isthmus.inspection import probe as module
from isthmus.nn.backbone import new_backbone
from isthmus.text.tokenizer import Tokenizer, new_tokenizer

TEXTS = [f"The {a} dog saw a {b} cat. It ran to the {b} end." for a in "abcde" for b in "fghij"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`corpus.jsonl`, `model` with a masked-LM head, and `headless`, which pools by the mean."""
    folder = tmp_path_factory.mktemp("probe")
    write_corpus(folder / "corpus.jsonl", {str(n): text for n, text in enumerate(TEXTS)})
    tokenizer = new_tokenizer(TEXTS, 80)
    backbone = new_backbone("tiny", len(tokenizer), tokenizer.pad_id, max_length=64, seed=0)
    backbone.save(folder / "model")
    BertModel.from_pretrained(folder / "model").save_pretrained(folder / "headless")
    for name in ("model", "headless"):
        tokenizer.save(folder / name)
    settings = {"kind": "dense", "pooling": "mean", "similarity": "cosine"}
    (folder / "headless" / "encoder.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def test_models_side_by_side(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(module, "notice", said.append)
    names = [str(folder / name) for name in ("model", "headless")]
    corpus = str(folder / "corpus.jsonl")
    report = research.probe([*names, names[0]], documents=corpus, settings={"max_length": 32})
    assert list(report.values) == names, "each once"
    assert report.documents == len(TEXTS), "too few for a split: all of them"
    whole, headless = (report.values[name] for name in names)
    tokens = len(Tokenizer.load(names[0]))
    assert whole["masked_lm"] == pytest.approx(math.log(tokens), abs=0.3), "untrained, it guesses"
    assert set(headless) == {"retrieval"}
    assert report.vectors == dict(zip(names, ("cls", "mean"), strict=True))
    assert any("has no masked-LM head: measured is retrieval" in line for line in said)
    assert any("[CLS] is measured" in line and names[0] in line for line in said)
    assert "bottleneck" not in report.better, "which no model here has"
    text = str(report)
    assert "masked_lm ↓" in text
    assert "–" in text
    few = ["measure=[masked_lm]", "max_length=32", "documents=7"]
    one = research.probe([names[0]], documents=corpus, settings=few)
    assert one.documents == 7
    assert set(one.values[names[0]]) == {"masked_lm"}
    assert any("7 documents are few" in line for line in said)


@pytest.mark.parametrize(
    ("models", "changes", "what"),
    [
        ([], (), "no model is named"),
        (["model"], ("measure=[masked_ml]",), "no probe named 'masked_ml'"),
        (["headless"], ("vector=lexicon", "max_length=32"), "no masked-LM head"),
        (["model"], ("max_length=65",), "positions that the model has"),
    ],
)
def test_refusals(folder: Path, models: list[str], changes: tuple[str, ...], what: str) -> None:
    named = [str(folder / name) for name in models]
    with pytest.raises(SettingsError, match=what):
        research.probe(named, documents=str(folder / "corpus.jsonl"), settings=list(changes))


def test_the_command(folder: Path) -> None:
    words = ["research", "probe", str(folder / "model")]
    words += ["--documents", str(folder / "corpus.jsonl")]
    changes = ["--set", "max_length=32", "--set", "measure=[coverage]"]
    ended = CliRunner().invoke(app, [*words, *changes, "--json", "--quiet"])
    assert ended.exit_code == 0, ended.output
    values = json.loads(ended.stdout)["values"][str(folder / "model")]
    assert set(values) == {"coverage", "coverage/constant", "coverage/ceiling"}
