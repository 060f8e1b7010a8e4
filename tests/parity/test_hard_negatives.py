"""Margins leave what mine_hard_negatives of sentence-transformers leaves, on the same model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives
from tests.factories import training_corpus, write_collection

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.finetuning.candidates import TrainingCorpus
from isthmus.finetuning.mining import mine
from isthmus.finetuning.negatives import negative_sources
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.nn.backbone import new_backbone
from isthmus.records import Query
from isthmus.text.tokenizer import new_tokenizer

WORDS = ["river", "bank", "money", "boat", "loan", "snow", "tide", "rate", "fish", "coin"]
TEXTS = [f"{a} {b} {c}" for a in WORDS[:4] for b in WORDS[3:8] for c in WORDS[7:]]
POSITIVES = [[7], [11, 30], [19], [42], [3, 4, 50]]
QUERIES = [" ".join(TEXTS[rows[0]].split()[:2]) for rows in POSITIVES]
TOKENIZER = new_tokenizer(TEXTS, 120)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    backbone = new_backbone("tiny", 130, TOKENIZER.pad_id, max_length=144, seed=3)
    with torch.no_grad():  # untrained weights say the same of every text
        for parameter in backbone.parameters():
            parameter.mul_(4)
    settings = DenseSettings(pooling="mean", similarity="cosine")
    folder = tmp_path_factory.mktemp("model")
    DenseEncoder(backbone, TOKENIZER, settings).save(folder)
    return str(folder)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingCorpus:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("isthmus.encoders.encoder.native_bf16", lambda: False)
    folder = write_collection(
        tmp_path / "collection",
        {f"c{n}": text for n, text in enumerate(TEXTS)},
        {f"q{n}": text for n, text in enumerate(QUERIES)},
        {"train": [("q0", "c0")]},
    )
    return training_corpus(folder, TOKENIZER)


@pytest.mark.parametrize(
    "margins",
    [
        {},
        {"absolute_margin": 0.02},
        {"relative_margin": 0.05},
        {"absolute_margin": 0.01, "relative_margin": 0.001},
    ],
)
def test_the_same_negatives_are_left(
    corpus: TrainingCorpus, model: str, margins: dict[str, float]
) -> None:
    pairs = [(QUERIES[n], TEXTS[row]) for n, rows in enumerate(POSITIVES) for row in rows]
    theirs = mine_hard_negatives(
        Dataset.from_dict({"query": [q for q, _ in pairs], "answer": [a for _, a in pairs]}),
        SentenceTransformer(model, device="cpu"),
        corpus=TEXTS,
        range_max=len(TEXTS),
        num_negatives=len(TEXTS),
        output_format="labeled-pair",
        verbose=False,
        **margins,
    )
    expected = {(row["query"], row["answer"]) for row in theirs if not row["label"]}
    chosen = {"name": "retriever", "model": model, "num_negatives": len(TEXTS), **margins}
    labelled = LabelledQueries([Query(f"q{n}", q) for n, q in enumerate(QUERIES)], POSITIVES)
    mined = mine(negative_sources(chosen, teacher=False), corpus, labelled, epochs=1, seed=0)
    found = {
        (QUERIES[number], TEXTS[row])
        for number in range(len(QUERIES))
        for row in mined.rows[number][~mined.random[number]].tolist()
    }
    assert found == expected
    assert 10 < len(expected) <= len(QUERIES) * len(TEXTS)
    assert not margins or len(expected) < len(QUERIES) * len(TEXTS) - len(pairs)
