"""A score depends on its pair alone: not on padding, company or place; a cut loses no room."""

from __future__ import annotations

from random import Random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import bert
from transformers import BertForSequenceClassification

from isthmus.encoders.cross import CrossEncoder, CrossSettings
from isthmus.nn.classifier import Classifier
from isthmus.records import Document
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 80)
WORDS = st.sampled_from(["the", "quick", "fox", "dog", "jumps", "ж", "over", "x"])
TEXTS = st.lists(WORDS, max_size=40).map(" ".join)


def encoder() -> CrossEncoder:
    torch.manual_seed(0)
    config = bert(len(TOKENIZER), num_labels=1)  # with dropout: scoring must switch it off
    chosen = CrossSettings(query_max_length=16, document_max_length=24)
    return CrossEncoder(Classifier(BertForSequenceClassification(config)), TOKENIZER, chosen)


ENCODER = encoder()


@settings(max_examples=30)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=6), st.randoms())
def test_padding_and_company_change_no_score(pairs: list[tuple[str, str]], random: Random) -> None:
    asked = [(query, Document("", text)) for query, text in pairs]
    together = ENCODER.score(asked)
    alone = [float(ENCODER.score([pair])[0]) for pair in asked]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    order = random.sample(range(len(asked)), k=len(asked))
    again = ENCODER.score([asked[place] for place in order])
    np.testing.assert_allclose(again, together[order], atol=1e-5)


@given(st.integers(0, 60), st.integers(0, 60))
def test_a_cut_keeps_beginnings_and_fills_the_room(query: int, document: int) -> None:
    pairing = ENCODER.pairing
    first, second = np.arange(100, 100 + query), np.arange(200, 200 + document)
    (ids,), _, (segments,) = pairing.pad([first], [second])
    kept = [row[np.isin(row, ids.numpy())] for row in (first, second)]
    assert ids.tolist() == [2, *kept[0], 3, *kept[1], 3], "[CLS] query [SEP] document [SEP]"
    assert kept[0].tolist() == first[: len(kept[0])].tolist()
    assert kept[1].tolist() == second[: len(kept[1])].tolist()
    assert len(ids) == min(query + document + 3, 40)
    assert len(kept[0]) >= min(query, 16 - 2), "a query keeps its own length"
    assert len(kept[1]) >= min(document, 24 - 1), "a document too"
    assert len(segments) == len(ids)
