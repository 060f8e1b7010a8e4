"""A real collection under a dense and a sparse encoder, to be searched here and elsewhere."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from isthmus.collections import open_corpus, read_queries
from isthmus.records import Document, Query
from isthmus.retrieval.index import index
from isthmus.text.order import CutTexts

QUERIES = 30


@dataclass
class Lexical:
    """Weighs words by how often they occur and how rare they are; as dense, mixes them."""

    kind: str
    weights: dict[str, float]
    name: str = ""
    fingerprint: str = ""
    assumed: str = ""
    numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = self.name or self.kind
        self.fingerprint = f"{self.name}-1"
        self.numbers = {word: number for number, word in enumerate(sorted(self.weights))}
        generator = np.random.default_rng(0)
        self._mixing = generator.standard_normal((len(self.numbers), 24)).astype(np.float32)

    @property
    def settings(self) -> SimpleNamespace:
        return SimpleNamespace(titles=True)

    def described(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @property
    def dimension(self) -> int:
        return len(self.numbers) if self.kind == "sparse" else self._mixing.shape[1]

    def has_tokens(self, text: str) -> bool:
        return bool(text.split())

    def encode_queries(self, texts: Sequence[str]) -> Any:
        rows, terms, weights = [], [], []
        for row, text in enumerate(texts):
            for word, count in Counter(words(text)).items():
                if word in self.numbers:
                    rows.append(row)
                    terms.append(self.numbers[word])
                    weights.append(math.log1p(count) * self.weights[word])
        found = scipy.sparse.csr_matrix(
            (np.float32(weights), (rows, terms)), shape=(len(texts), len(self.numbers))
        )
        return found if self.kind == "sparse" else np.float32(found @ self._mixing)

    def encode_documents(self, documents: Sequence[Document]) -> Any:
        return self.encode_queries([document.contents(True) for document in documents])

    @property
    def cut_texts(self) -> CutTexts:
        return CutTexts(100)

    def encode_blocks(self, blocks: Iterable[Sequence[Document]], encoded: Any = None) -> Any:
        return ((block, self.encode_documents(block)) for block in blocks)


def words(text: str) -> list[str]:
    return re.findall(r"\w\w+", text.lower())


@dataclass
class Indexed:
    """Index folders by name, their encoders, and queries to ask."""

    folders: dict[str, Path]
    encoders: dict[str, Lexical]
    queries: list[Query]
    query_file: Path

    def vectors(self, name: str) -> Any:
        return self.encoders[name].encode_queries([query.text for query in self.queries])

    @property
    def ids(self) -> list[str]:
        return [query.id for query in self.queries]


@pytest.fixture(scope="session")
def medline(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    """`sparse` has weights up to 511, `heavy` larger ones, `float` fractions."""
    collection = shared_data / "collections" / "medline"
    documents = list(open_corpus(f"beir:{collection}").documents())
    counts = Counter(word for d in documents for word in set(words(d.contents(True))))
    rarity = {word: math.log(len(documents) / count) for word, count in counts.items()}
    light = {word: min(weight, 3.0) for word, weight in rarity.items()}
    encoders = {
        "sparse": Lexical("sparse", {w: min(v, 1.5) for w, v in light.items()}),
        "heavy": Lexical("sparse", rarity, "heavy"),
        "float": Lexical("sparse", light, "float"),
        "dense": Lexical("dense", light),
    }
    place = tmp_path_factory.mktemp("medline")
    whole = {"passages": False, "bm25": False}
    chosen = {"float": {**whole, "sparse.weights": "float"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isthmus.encoders.load_encoder", lambda name, *_: encoders[name])
        folders = {
            name: index(f"beir:{collection}", place / name, name, settings=chosen.get(name, whole))
            for name in encoders
        }
        for sparse in ("sparse", "float"):
            folders[f"{sparse} and dense"] = index(
                f"beir:{collection}",
                place / f"{sparse}-and-dense",
                ["dense", sparse],
                settings=chosen.get(sparse, whole),
            )
    file = collection / "queries.jsonl.zst"
    return Indexed(folders, encoders, read_queries(file)[:QUERIES], file)


@pytest.fixture
def loads(medline: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model names lead to the encoders of the collection."""
    encoders = medline.encoders
    monkeypatch.setattr("isthmus.retrieval.searcher.on_this_disk", lambda name: name)
    for load in ("load_encoder", "load_query_encoder", "load_indexed_encoder"):
        monkeypatch.setattr(f"isthmus.encoders.{load}", lambda name, *_, **__: encoders[name])
