"""Limits the terms of a document before training: a head may begin with nearly all."""

from __future__ import annotations

import numpy as np

from isthmus.encoders.sparse import SparseEncoder
from isthmus.progress import notice
from isthmus.text.corpus import TokenisedCorpus

_DOCUMENTS = 64


def start_with(encoder: SparseEncoder, corpus: TokenisedCorpus, terms: int, seed: int) -> None:
    """Lowers the head's bias where an average document would have more terms, with a notice."""
    drawn = np.sort(np.random.default_rng([seed, 4]).permutation(len(corpus))[:_DOCUMENTS])
    limit = encoder.settings.document_max_length
    rows = [encoder.tokenizer.frame(corpus.tokens(row), limit).tolist() for row in drawn]
    before, lowered = encoder.lower_bias(rows, terms)
    if lowered:
        notice(
            f"an average document has {before:,.0f} terms before training: the head's bias is "
            f"lowered by {lowered:.2f}, which leaves {terms:,} (start_terms)"
        )
