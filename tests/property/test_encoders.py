"""A vector depends on its text alone: not on padding, company or place."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import bert
from transformers import BertForMaskedLM

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.nn.backbone import Backbone
from isthmus.records import Document
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 80)
WORDS = st.sampled_from(["the", "quick", "fox", "dog", "jumps", "ж", "over", "x"])
TEXTS = st.lists(WORDS, max_size=40).map(" ".join)
KINDS = list(itertools.product(("cls", "mean"), ("dot", "cosine")))


def encoder(pooling: str, similarity: str, document_max_length: int = 32) -> DenseEncoder:
    torch.manual_seed(0)
    config = bert(len(TOKENIZER))  # with dropout: encoding must switch it off
    chosen = DenseSettings.parse(
        {
            "pooling": pooling,
            "similarity": similarity,
            "query_max_length": 16,
            "document_max_length": document_max_length,
        },
        where="test",
    )
    return DenseEncoder(Backbone(BertForMaskedLM(config)), TOKENIZER, chosen)


ENCODERS = {kind: encoder(*kind) for kind in KINDS}


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(KINDS), st.lists(TEXTS, min_size=1, max_size=5), st.randoms())
def test_padding_and_company_change_no_vector(
    kind: tuple[str, str], texts: list[str], random: Random
) -> None:
    model = ENCODERS[kind]
    together = model.encode_queries(texts)
    assert together.shape == (len(texts), 16)
    assert together.dtype == np.float32
    order = list(range(len(texts)))
    random.shuffle(order)
    shuffled = model.encode_queries([texts[row] for row in order])
    np.testing.assert_allclose(shuffled, together[order], atol=1e-5)
    for row, text in enumerate(texts):
        alone = model.encode_queries([text])[0]
        np.testing.assert_allclose(alone, together[row], atol=1e-5)
    if model.similarity == "cosine":
        np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_many_batches_of_unlike_length_come_back_in_order(kind: tuple[str, str]) -> None:
    model = ENCODERS[kind]
    texts = [" ".join(["fox dog", "the", "lazy"][: n % 4] * (n % 7)) for n in range(150)]
    found = model.encode_queries(texts)
    for row in (0, 1, 63, 64, 100, 149):
        np.testing.assert_allclose(found[row], model.encode_queries([texts[row]])[0], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_is_the_pooled_states_of_the_framed_text(kind: tuple[str, str]) -> None:
    model = ENCODERS[kind]
    text = "the quick fox"
    ids = TOKENIZER.pretrained(text)["input_ids"]
    with torch.no_grad():
        states = model.backbone.model.eval().base_model(torch.tensor([ids])).last_hidden_state[0]
    expected = (states[0] if kind[0] == "cls" else states.mean(0)).double()
    if kind[1] == "cosine":
        expected /= expected.norm()
    np.testing.assert_allclose(model.encode_queries([text])[0], expected.numpy(), atol=1e-6)


def test_queries_and_documents_are_cut_at_their_own_length() -> None:
    model = encoder("mean", "dot", document_max_length=32)
    long = "fox dog " * 30
    ids = TOKENIZER.encode([long], 10_000)[0]
    query, document = model.encode_queries([long]), model.encode_documents([Document("1", long)])
    for vector, limit in ((query, 16), (document, 32)):
        cut = torch.tensor([[*ids[: limit - 1], ids[-1]]])
        with torch.no_grad():
            expected = model.backbone.eval()(cut, torch.ones_like(cut)).mean(1)
        np.testing.assert_allclose(vector, expected.numpy(), atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(["", " "]))
def test_has_tokens(text: str) -> None:
    expected = bool(TOKENIZER.pretrained(text, add_special_tokens=False)["input_ids"])
    assert ENCODERS["cls", "dot"].has_tokens(text) == expected


def test_blocks_come_back_in_order_with_their_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ENCODERS["mean", "cosine"]
    documents = [Document(str(n), "fox dog the " * (n % 9), "lazy" * (n % 2)) for n in range(40)]
    blocks = [documents[:17], documents[17:18], [], documents[18:]]
    counted: list[int] = []
    monkeypatch.setattr("isthmus.encoders.encoder.ON_CPU", 64)
    found = list(model.encode_blocks(iter(blocks), counted.append))
    assert sum(counted) == 40
    assert len(counted) > 2 * len(blocks), "after every batch"
    assert [block for block, _ in found] == blocks
    for block, vectors in found:
        np.testing.assert_array_equal(vectors, model.encode_documents(block))
    assert list(model.encode_blocks([])) == []


def test_no_texts_no_vectors() -> None:
    for model in ENCODERS.values():
        assert model.encode_queries([]).shape == (0, 16)
        assert model.encode_documents([]).shape == (0, 16)


def test_encoding_leaves_training_as_it_was() -> None:
    model = encoder("cls", "dot")
    for training in (True, False):
        model.backbone.train(training)
        one, two = model.encode_queries(["fox"]), model.encode_queries(["fox"])
        assert (one == two).all(), "dropout is off"
        assert model.backbone.training is training
