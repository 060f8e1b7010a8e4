"""A finished run presents its model: a card, and files by which the folder itself loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from isthmus.config.model_card import finish_model
from isthmus.config.output import claimed
from isthmus.encoders import DenseEncoder, DenseSettings, load_encoder
from isthmus.nn.backbone import new_backbone
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 80)
RESULTS = {"development": 0.31, "log": [1, 2], "seconds": 5.0}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.argv", ["isthmus", "pretrain", "--recipe", "cdmae"])
    folder = tmp_path / "mine"
    with claimed(folder, "pretrain", {"settings": {"corpus": "docs"}, "data": {"corpus": "ab12"}}):
        backbone = new_backbone("tiny", 90, TOKENIZER.pad_id, max_length=144, seed=0)
        settings = DenseSettings(pooling="mean", similarity="cosine")
        DenseEncoder(backbone, TOKENIZER, settings).save(folder / "final")
        finish_model(folder, RESULTS)
    return folder


def test_the_card_says_what_made_the_model(run: Path) -> None:
    card = (run / "final" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: sentence-transformers\n")
    for part in ("# mine\n", "recipe `cdmae`", "corpus: docs", "corpus: ab12", "Apache-2.0"):
        assert part in card
    assert "- development: 0.31\n" in card
    assert "seconds" not in card
    assert "CDMAE" in card.partition("## Citation")[2]


def test_the_run_itself_loads_as_its_model_does(run: Path) -> None:
    texts = ["the quick fox", "a lazy dog"]
    expected = load_encoder(str(run), exact=True).encode_queries(texts)
    for folder in (run, run / "final"):
        found = SentenceTransformer(str(folder), device="cpu").encode(texts)
        np.testing.assert_allclose(found, expected, atol=1e-5)
