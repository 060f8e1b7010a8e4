"""A sparse vector depends on its text alone, and of its terms the heaviest are kept."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.sparse import csr_matrix
from tests.factories import bert
from transformers import BertForMaskedLM

from isthmus.encoders.sparse import SparseEncoder, SparseSettings, heaviest
from isthmus.nn.backbone import Backbone
from isthmus.records import Document
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 80)
WORDS = st.sampled_from(["the", "quick", "fox", "dog", "jumps", "ж", "over", "x"])
TEXTS = st.lists(WORDS, max_size=40).map(" ".join)
KINDS = list(itertools.product(("splade", "lexmae"), ("encoder", "terms")))


def encoder(form: str, query: str) -> SparseEncoder:
    torch.manual_seed(0)
    config = bert(len(TOKENIZER) + 2)  # with dropout: encoding must switch it off
    chosen = {"form": form, "query": query, "query_max_length": 16, "document_max_length": 32}
    parsed = SparseSettings.parse(chosen, where="test")
    made = SparseEncoder(Backbone(BertForMaskedLM(config)), TOKENIZER, parsed)
    if made.query_terms is not None:
        torch.nn.init.normal_(made.query_terms.theta, std=0.02)
    return made


ENCODERS = {kind: encoder(*kind) for kind in KINDS}


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(KINDS), st.lists(TEXTS, min_size=1, max_size=5), st.randoms())
def test_padding_and_company_change_no_vector(
    kind: tuple[str, str], texts: list[str], random: Random
) -> None:
    model = ENCODERS[kind]
    order = list(range(len(texts)))
    random.shuffle(order)
    for encode in (
        model.encode_queries,
        lambda texts: model.encode_documents([Document("", text) for text in texts]),
    ):
        together = encode(texts)
        assert isinstance(together, csr_matrix)
        assert together.dtype == np.float32
        assert together.shape == (len(texts), len(TOKENIZER) + 2)
        assert together.has_canonical_format
        assert (together.data > 0).all(), "zeros are not stored, and nothing is negative"
        shuffled = encode([texts[row] for row in order])
        np.testing.assert_allclose(shuffled.toarray(), together[order].toarray(), atol=1e-5)
        for row, text in enumerate(texts):
            alone = encode([text]).toarray()
            np.testing.assert_allclose(alone, together[row].toarray(), atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(TEXTS, st.sampled_from(KINDS))
@example(" ".join(["fox", "dog", "quick"] * 8 + ["jumps"] * 20), ("splade", "encoder"))  # is cut
@example(" ".join(["fox"] * 20 + ["jumps"]), ("lexmae", "terms"))
def test_encoding_is_what_training_sees(text: str, kind: tuple[str, str]) -> None:
    model = ENCODERS[kind]
    for encoded, represent, limit in (
        (model.encode_queries([text]), model.represent_queries, 16),
        (model.encode_documents([Document("", text)]), model.represent_documents, 32),
    ):
        ids = torch.tensor(TOKENIZER.encode([text], limit))
        model.backbone.eval()
        expected = represent(ids, torch.ones_like(ids)).detach().numpy()
        np.testing.assert_allclose(encoded.toarray(), expected, atol=1e-5)


@settings(deadline=None, max_examples=100)
@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(0, 5), st.integers(1, 9)),
        elements=st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 2.0]),  # with ties
    ),
    st.integers(1, 10),
)
def test_the_heaviest_terms_are_kept(weights: np.ndarray, count: int) -> None:
    found = heaviest(csr_matrix(weights), count)
    assert found.has_canonical_format
    for row, kept in zip(weights, found.toarray(), strict=True):
        order = sorted(range(len(row)), key=lambda term: (-row[term], term))[:count]
        expected = np.zeros_like(row)
        expected[order] = row[order]
        np.testing.assert_array_equal(kept, expected)
    assert heaviest(csr_matrix(weights), None).nnz == (weights > 0).sum()


def test_of_blocks_the_heaviest_terms_are_kept_too() -> None:
    model = encoder("splade", "encoder")
    model.settings = SparseSettings(document_terms=3)
    documents = [Document(str(n), "fox dog the " * (n % 9)) for n in range(20)]
    for block, vectors in model.encode_blocks([documents[:7], [], documents[7:]]):
        assert (vectors != model.encode_documents(block)).nnz == 0
        assert set(np.diff(vectors.indptr)) <= {3}
