"""What many tests begin with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch.nn.functional as functional
from torch import Tensor
from transformers import BertConfig

from isthmus.collections import open_collection
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import (
    Bm25Field,
    CorpusOrigin,
    DenseField,
    EncoderOrigin,
    FieldAbout,
    Manifest,
    SparseField,
)
from isthmus.indexes.writer import IndexWriter
from isthmus.nn.backbone import new_backbone
from isthmus.records import Document, Passage, document_of
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.passages import Cut, Cutter
from isthmus.text.tokenizer import Tokenizer, new_tokenizer

if TYPE_CHECKING:
    from isthmus.finetuning.candidates import TrainingCorpus

WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert(vocabulary: int, **changes: Any) -> BertConfig:
    """A small BERT whose random weights are large enough to tell texts apart."""
    shape = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 64, "initializer_range": 0.3,
    }  # fmt: skip
    return BertConfig(vocab_size=vocabulary, **{**shape, **changes})


def looked_up(words: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Grows with the ids of every look-up in a matrix: a hook would turn own layers off."""
    found: list[Tensor] = []
    plain = functional.embedding

    def noted(ids: Tensor, matrix: Tensor, *more: Any) -> Tensor:
        if matrix is words:
            found.append(ids)
        return plain(ids, matrix, *more)

    monkeypatch.setattr(functional, "embedding", noted)
    return found


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
    from isthmus.finetuning.candidates import TrainingCorpus

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


ENCODER = EncoderOrigin(name="model", fingerprint="e0")
DIMENSION = 4  # of `vectors`
BM25 = Bm25Field()
DENSE = DenseField(encoder=ENCODER, dimension=DIMENSION)
SPARSE = SparseField(encoder=ENCODER, dimension=DIMENSION)


def manifest(fields: Mapping[str, FieldAbout], cut: Cut | None = None, **changes: Any) -> Manifest:
    """What an index is to hold before it holds anything."""
    corpus = CorpusOrigin(spec="corpus.jsonl", fingerprint="c0")
    return Manifest(corpus=corpus, passages=cut, fields=dict(fields), **changes)


def index_of(
    folder: Path,
    some: Sequence[Document],
    fields: Mapping[str, FieldAbout],
    given: Mapping[str, Any] | None = None,
    rows: Sequence[Document] | None = None,
    cut: Cut | None = None,
    step: int = 1000,
) -> Index:
    """An index of these documents, whose vectors are given by field, built without an encoder.

    Where there are passages, `rows` are those of all documents, and vectors theirs.
    """
    with IndexWriter(folder, manifest(fields, cut)) as writer:
        fill(writer, some, given, rows, step)
        writer.commit()
    return Index.open(folder)


def fill(
    writer: IndexWriter,
    some: Sequence[Document],
    given: Mapping[str, Any] | None = None,
    rows: Sequence[Document] | None = None,
    step: int = 1000,
) -> None:
    """Adds documents with their rows and the vectors of these, so many documents at a time."""
    rows = list(some if rows is None else rows)
    first = 0
    for start in range(0, len(some), step):
        block = some[start : start + step]
        owners = {one.id for one in block}
        last = first + sum(
            (document_of(one.id) if isinstance(one, Passage) else one.id) in owners
            for one in rows[first:]
        )
        part = {name: matrix[first:last] for name, matrix in (given or {}).items()}
        writer.add(block, rows[first:last], part)
        first = last


def words_cut(some: Iterable[Document], length: int = 16) -> tuple[Cut, list[Passage]]:
    """Documents cut into passages of so many words, and how that was done."""
    cut = Cut(length=length, overlap=0)
    return cut, list(Cutter(cut).passages(some))
