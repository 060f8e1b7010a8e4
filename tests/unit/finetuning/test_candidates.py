"""Candidates of every source, ranked once: dense, sparse, BM25 and run files; nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import training_corpus, write_collection

from isthmus.collections import write_run
from isthmus.collections.problems import ReadingSettings
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.loader import load_encoder
from isthmus.encoders.sparse import SparseEncoder, SparseSettings
from isthmus.errors import MismatchError
from isthmus.finetuning import candidates as module
from isthmus.finetuning.candidates import (
    NOTHING,
    Candidates,
    Ranker,
    TrainingCorpus,
    searched,
)
from isthmus.finetuning.candidates import candidates as ranked
from isthmus.finetuning.mining import mine
from isthmus.finetuning.negatives import Source, negative_sources
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.nn.backbone import new_backbone
from isthmus.records import Query, Ranking, Run
from isthmus.retrieval.index import BM25, IndexSettings, index
from isthmus.retrieval.searcher import open_searcher
from isthmus.text.tokenizer import new_tokenizer

WORDS = ["river", "bank", "money", "boat", "loan", "snow", "tide", "rate", "fish", "coin"]
TEXTS = [f"{a} and {b} with {c}" for a in WORDS[:4] for b in WORDS[3:7] for c in WORDS[6:]]
QUERIES = [
    Query(f"q{n}", f"{a} {b}") for n, (a, b) in enumerate(zip(WORDS, WORDS[2:], strict=False))
]
TOKENIZER = new_tokenizer(TEXTS, 120)
DEPTH = 7


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingCorpus:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    folder = write_collection(
        tmp_path / "collection",
        {f"d{n}": text for n, text in enumerate(TEXTS)},
        {query.id: query.text for query in QUERIES},
        {"train": [(query.id, f"d{n}") for n, query in enumerate(QUERIES)]},
    )
    return training_corpus(folder, TOKENIZER)


def source(**values: Any) -> Source:
    (found,) = negative_sources(values, teacher=False)
    return found


def open_ranked(corpus: TrainingCorpus, depth: int = DEPTH, **values: Any) -> Candidates:
    return ranked(source(**values).open(corpus), corpus, QUERIES, depth)


class Counting:
    """A ranker that keeps what it was asked."""

    def __init__(self, fingerprint: str = "counting") -> None:
        self.asked: list[tuple[int, int]] = []
        self.ranker = Ranker(fingerprint, self.rank)

    def rank(self, queries: Sequence[Query], depth: int) -> list[Ranking]:
        self.asked.append((len(queries), depth))
        ids = tuple(f"d{n}" for n in range(depth))
        return [Ranking(query.id, ids, tuple(range(depth, 0, -1))) for query in queries]


def test_what_was_ranked_is_not_ranked_again(corpus: TrainingCorpus) -> None:
    counting = Counting()
    first = ranked(counting.ranker, corpus, QUERIES, 5)
    again = ranked(counting.ranker, corpus, QUERIES, 5)
    less = ranked(counting.ranker, corpus, QUERIES, 3)
    assert counting.asked == [(len(QUERIES), 5)]
    np.testing.assert_array_equal(first.rows, again.rows)
    np.testing.assert_array_equal(first.rows[:, :3], less.rows)
    np.testing.assert_array_equal(first.scores[:, :3], less.scores)
    ranked(counting.ranker, corpus, QUERIES, 8)  # deeper
    ranked(counting.ranker, corpus, QUERIES[:4], 5)  # other queries
    changed = [Query(QUERIES[0].id, "another text"), *QUERIES[1:]]
    ranked(counting.ranker, corpus, changed, 5)
    ranked(counting.ranker, replace(corpus, fingerprint="other documents"), QUERIES, 5)
    assert counting.asked[1:] == [(len(QUERIES), 8), (4, 5), *[(len(QUERIES), 5)] * 2]
    other = Counting("another")
    ranked(other.ranker, corpus, QUERIES, 5)
    assert other.asked


def test_every_corpus_has_an_index_of_its_own(corpus: TrainingCorpus) -> None:
    given = BM25, BM25, IndexSettings()
    one = searched(corpus.collection, corpus.fingerprint, *given)
    assert searched(corpus.collection, corpus.fingerprint, *given) == one
    assert searched(corpus.collection, "another corpus", *given) != one


def test_bm25_ranks_as_a_search_does(corpus: TrainingCorpus, tmp_path: Path) -> None:
    found = open_ranked(corpus, name="bm25")
    anserini = {"bm25.k1": 0.9, "bm25.b": 0.4}
    searcher = open_searcher(index(corpus.spec, tmp_path / "index", settings=anserini))
    for number, ranking in enumerate(searcher.search(QUERIES, DEPTH)):
        rows = [int(document[1:]) for document in ranking.document_ids]
        assert found.rows[number, : len(rows)].tolist() == rows
        assert (found.rows[number, len(rows) :] == NOTHING).all()
        assert np.isneginf(found.scores[number, len(rows) :]).all()
        np.testing.assert_allclose(found.scores[number, : len(rows)], ranking.scores, rtol=1e-6)
    other = open_ranked(corpus, name="bm25", scoring={"k1": 2.5, "b": 1.0})
    assert (other.scores != found.scores).any(), "another scoring is not the same in the cache"


@pytest.fixture(params=["dense", "sparse"])
def model(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("isthmus.encoders.encoder.native_bf16", lambda: False)
    backbone = new_backbone("tiny", 130, TOKENIZER.pad_id, max_length=144, seed=0)
    with torch.no_grad():  # untrained weights say the same of every text
        for parameter in backbone.parameters():
            parameter.mul_(4)
    encoder: Any
    if request.param == "dense":
        encoder = DenseEncoder(backbone, TOKENIZER, DenseSettings(pooling="mean"))
    else:
        encoder = SparseEncoder(backbone, TOKENIZER, SparseSettings())
    encoder.save(tmp_path / "model")
    return str(tmp_path / "model")


def test_a_retriever_ranks_by_its_own_vectors(corpus: TrainingCorpus, model: str) -> None:
    encoder = load_encoder(model)
    queries: Any = encoder.encode_queries([query.text for query in QUERIES])
    documents: Any = encoder.encode_documents(list(corpus.collection.documents()))
    if encoder.kind == "sparse":
        queries, documents = queries.toarray(), documents.toarray()
    products = queries.astype(np.float64) @ documents.astype(np.float64).T
    found = open_ranked(corpus, name="retriever", model=model)
    assert (found.rows != NOTHING).all()
    expected = -np.sort(-products, axis=1)[:, :DEPTH]
    np.testing.assert_allclose(found.scores, expected, rtol=1e-4)
    taken = np.take_along_axis(products, found.rows.astype(np.int64), axis=1)
    np.testing.assert_allclose(taken, expected, rtol=1e-4)


def test_changing_a_margin_encodes_and_ranks_nothing(
    corpus: TrainingCorpus, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled = LabelledQueries(QUERIES, [[n] for n in range(len(QUERIES))])
    chosen = {"name": "retriever", "model": model, "range_max": 40, "num_negatives": 3}
    first = mine([source(**chosen)], corpus, labelled, 2, 0)

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("something was encoded or ranked again")

    for kind in (DenseEncoder, SparseEncoder):
        monkeypatch.setattr(kind, "encode_documents", refuse)
        monkeypatch.setattr(kind, "encode_queries", refuse)
    monkeypatch.setattr(module, "index", refuse)
    for change in (
        {"relative_margin": 0.05}, {"absolute_margin": 0.1}, {"range_min": 5}, {"range_max": 20},
        {"num_negatives": 4},
    ):  # fmt: skip
        again = mine([source(**(chosen | change))], corpus, labelled, 2, 0)
        assert again.rows.shape != first.rows.shape or (again.rows != first.rows).any()
    with pytest.raises(pytest.fail.Exception):
        mine([source(**(chosen | {"range_max": 41}))], corpus, labelled, 2, 0)


def write(file: Path, rankings: dict[str, list[str]]) -> Path:
    scored = {
        query: Ranking(query, tuple(ids), tuple(float(-n) for n in range(len(ids))))
        for query, ids in rankings.items()
    }
    write_run(file, Run("test", scored))
    return file


def test_a_run_file(
    corpus: TrainingCorpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "a.trec", {"q0": ["d5", "d2"], "q3": ["d9"], "elsewhere": ["x"]})
    found = open_ranked(corpus, name="run", file=str(file), depth=3)
    assert found.rows[0].tolist() == [5, 2, NOTHING]
    assert found.rows[3].tolist() == [9, NOTHING, NOTHING]
    assert (np.delete(found.rows, [0, 3], axis=0) == NOTHING).all()
    told = " ".join(capsys.readouterr().err.split())
    assert f"{len(QUERIES) - 2} of {len(QUERIES)} training queries have no ranking" in told
    write(file, {"q0": ["d1"]})
    assert open_ranked(corpus, name="run", file=str(file), depth=3).rows[0, 0] == 1, "by content"


def test_a_run_file_from_another_corpus(
    corpus: TrainingCorpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "a.trec", {"q0": ["d5", "w1"], "q1": ["w2", "d2", "w3"]})
    with pytest.raises(MismatchError) as caught:
        open_ranked(corpus, name="run", file=str(file))
    assert "is of another corpus: 3 of the 5 documents" in caught.value.what
    assert "'w1'" in caught.value.what
    assert str(file) in caught.value.what
    assert "problems=skip" in caught.value.fix
    reading = ReadingSettings(problems="skip")
    skipping = TrainingCorpus(
        corpus.spec, corpus.collection, "skip", corpus.tokenised, reading=reading
    )
    found = open_ranked(skipping, name="run", file=str(file), depth=2)
    assert found.rows[:2].tolist() == [[5, NOTHING], [2, NOTHING]]
    assert "3 of the 5 documents" in " ".join(capsys.readouterr().err.split())
    write(file, {"q0": ["w5", "w1"]})
    with pytest.raises(MismatchError, match="2 of the 2 documents"):
        open_ranked(skipping, name="run", file=str(file))
