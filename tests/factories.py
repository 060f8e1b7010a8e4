"""What many tests begin with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import BertConfig

from isthmus.collections import open_collection
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.finetuning.mining.candidates import TrainingCorpus
from isthmus.indexes.manifest import (
    Bm25Settings,
    CorpusOrigin,
    Description,
    EncoderOrigin,
    InvertedSettings,
)
from isthmus.nn.sizes import new_backbone
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.new_tokenizer import new_tokenizer
from isthmus.text.tokenizer import Tokenizer

WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert(vocabulary: int, **changes: Any) -> BertConfig:
    """A small BERT whose random weights are large enough to tell texts apart."""
    shape = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 64, "initializer_range": 0.3,
    }  # fmt: skip
    return BertConfig(vocab_size=vocabulary, **{**shape, **changes})


def write_collection(
    folder: Path,
    documents: Mapping[str, str],
    queries: Mapping[str, str],
    judged: Mapping[str, Iterable[tuple[str, str] | tuple[str, str, int]]],
    titles: Mapping[str, str] | None = None,
) -> Path:
    """A BEIR folder of texts by their ids; of each split, pairs of a query and a document."""
    (folder / "qrels").mkdir(parents=True)
    titled = titles or {}
    lines = [
        {"_id": name, "title": titled.get(name, ""), "text": text}
        for name, text in documents.items()
    ]
    asked = [{"_id": name, "text": text} for name, text in queries.items()]
    for name, records in (("corpus", lines), ("queries", asked)):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    for split, pairs in judged.items():
        rows = ["query-id\tcorpus-id\tscore"]
        rows += ["\t".join(map(str, pair if len(pair) == 3 else (*pair, 1))) for pair in pairs]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def write_corpus(file: Path, texts: Mapping[str, str]) -> Path:
    """A jsonl file of texts by their ids."""
    lines = [json.dumps({"_id": name, "text": text}) + "\n" for name, text in texts.items()]
    file.write_text("".join(lines), encoding="utf-8")
    return file


def write_encoder(folder: Path, texts: Sequence[str], tokens: int, **settings: Any) -> Path:
    """A dense encoder with random weights, whose tokens (at most so many) are of these texts."""
    tokenizer = new_tokenizer(texts, tokens)
    backbone = new_backbone("tiny", tokenizer.rows, tokenizer.pad_id, max_length=64, seed=0)
    DenseEncoder(backbone, tokenizer, DenseSettings(**settings)).save(folder)
    return folder


def tokenised(texts: Sequence[str], tokenizer: Tokenizer, cache: Path) -> TokenisedCorpus:
    """A corpus of documents named by their numbers."""
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    return tokenise(documents, json.dumps(list(texts)), tokenizer.serialised, cache=cache)


def training_corpus(folder: Path, tokenizer: Tokenizer, titles: bool = True) -> TrainingCorpus:
    """The documents of a collection, in which candidates are searched."""
    collection = open_collection(str(folder))
    read = f"{collection.fingerprint()} refuse"
    tokens = tokenise(collection.documents(), read, tokenizer.serialised, titles)
    return TrainingCorpus(str(folder), collection, read, tokens, titles)


def documents(count: int = 50) -> list[Document]:
    """Ids that sort differently from their order and from their numbers; scripts of all kinds."""
    texts = ["a river", "the bank of a river", "money in the bank", "", "naïve Σίσυφος 雪国"]
    return [
        Document(f"d{(7 * row) % count}", texts[row % len(texts)], f"title {row}")
        for row in range(count)
    ]


def vectors(count: int = 50, dimension: int = 4) -> np.ndarray:
    """A random vector of each document."""
    return np.random.default_rng(0).standard_normal((count, dimension)).astype(np.float32)


def described(kind: str = "dense", **changes: Any) -> Description:
    """What an index of this kind is to hold; as many dimensions as `vectors` has."""
    values: dict[str, Any] = {"encoder": EncoderOrigin(name="model", fingerprint="e0")}
    values["dimension"] = 4
    if kind == "bm25":
        values = {"bm25": Bm25Settings()}
    elif kind == "inverted":
        values["inverted"] = InvertedSettings()
    else:
        values["dtype"] = "float32"
    corpus = CorpusOrigin(spec="corpus.jsonl", fingerprint="c0")
    return Description(**{"kind": kind, "corpus": corpus, "titles": True, **values, **changes})
