"""Small models that inspection looks into, and a corpus for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import BertModel

from isthmus.nn.backbone import new_backbone
from isthmus.text.tokenizer import new_tokenizer

TOPICS = ["river bank", "money loan", "snow storm", "boat trip", "green apple"]
TEXTS = [
    f"The {topic} of {day}. A dog saw it twice. Nobody else went to the {topic.split()[0]}!"
    for topic in TOPICS
    for day in ("monday", "tuesday", "friday", "sunday", "spring")
]


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`corpus.jsonl`; `cls` and `other`, dense with a head; `sparse`; `headless`, without one."""
    folder = tmp_path_factory.mktemp("inspected")
    records = [
        {"_id": f"d{n}", "title": TOPICS[n // 5].title() if n % 2 else "", "text": text}
        for n, text in enumerate(TEXTS)
    ]
    lines = "".join(f"{json.dumps(one)}\n" for one in records)
    (folder / "corpus.jsonl").write_text(lines, encoding="utf-8")
    tokenizer = new_tokenizer([*TEXTS, *TOPICS], 140)
    kinds = {
        "cls": {"kind": "dense", "pooling": "cls", "similarity": "dot"},
        "other": {"kind": "dense", "pooling": "mean", "similarity": "cosine"},
        "sparse": {"kind": "sparse"},
        "headless": {"kind": "dense", "pooling": "mean", "similarity": "cosine"},
    }
    for seed, (name, settings) in enumerate(kinds.items()):
        backbone = new_backbone("tiny", len(tokenizer), tokenizer.pad_id, max_length=64, seed=seed)
        if name == "sparse":  # so that some terms have a weight, and others none
            backbone.vocabulary_bias.data.fill_(-0.3)  # type: ignore[union-attr]
        backbone.save(folder / name)
        lengths = {"query_max_length": 32, "document_max_length": 64}
        written = json.dumps({**settings, **lengths})
        if name == "headless":
            bare = BertModel.from_pretrained(folder / name)
            bare.save_pretrained(folder / name)
        (folder / name / "encoder.json").write_text(written, encoding="utf-8")
        tokenizer.save(folder / name)
    return folder
