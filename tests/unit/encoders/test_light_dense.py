"""A search of one query reads its encoder without transformers; many queries, with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.light_dense import QuickEncoder
from isthmus.encoders.loader import load_encoder, load_query_encoder
from isthmus.nn.backbone import new_backbone
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 80)
TEXTS = ["the fox", "a lazy dog jumps over it", "quick"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    backbone = new_backbone("tiny", 90, TOKENIZER.pad_id, max_length=144, seed=0)
    settings = DenseSettings(pooling="mean", similarity="cosine", query_max_length=6)
    DenseEncoder(backbone, TOKENIZER, settings).save(tmp_path / "model")
    return tmp_path / "model"


def test_few_and_many_queries_have_the_vectors_of_the_whole_encoder(saved: Path) -> None:
    whole = load_encoder(str(saved), exact=True)
    quick = load_query_encoder(str(saved), whole.fingerprint, exact=True)
    assert isinstance(quick, QuickEncoder)
    expected = whole.encode_queries(TEXTS)
    np.testing.assert_allclose(quick.encode_queries(TEXTS), expected, atol=1e-6)
    assert "loaded" not in vars(quick)
    np.testing.assert_allclose(quick.encode_queries(TEXTS * 30)[:3], expected, atol=1e-6)
    assert "loaded" in vars(quick)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"hidden_act": "gelu_new"}),
        ("config.json", {"layer_norm_eps": "none"}),
        ("encoder.json", {"pooling": "cls"}),
        ("config.json", {"hidden_size": None}),
    ],
)
def test_whatever_it_cannot_vouch_for_is_left_to_transformers(
    file: str, change: dict[str, object], saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fingerprint = load_encoder(str(saved)).fingerprint
    stated = json.loads((saved / file).read_text())
    (saved / file).write_text(json.dumps({**stated, **change}))
    asked: list[str] = []
    monkeypatch.setattr("isthmus.encoders.loader.load_encoder", lambda name, *_: asked.append(name))
    load_query_encoder(str(saved), fingerprint)
    assert asked == [str(saved)]


def test_transformers_is_not_imported_for_a_query(saved: Path) -> None:
    fingerprint = load_encoder(str(saved)).fingerprint
    lines = [
        "import sys",
        "from isthmus.encoders import load_query_encoder",
        f"encoder = load_query_encoder({str(saved)!r}, {fingerprint!r})",
        "assert encoder.encode_queries(['the fox']).shape[0] == 1",
        "heavy = {'transformers', 'datasets', 'sklearn', 'numba', 'accelerate', 'sympy'}",
        "print(sorted(heavy & sys.modules.keys()))",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stderr
