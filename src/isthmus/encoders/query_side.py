"""The query's side of an encoder with learned query terms, which needs no transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.sparse import csr_matrix

from isthmus.encoders.query_terms import QueryTerms
from isthmus.encoders.sparse import SparseSettings, heaviest
from isthmus.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class QuerySide:
    """Encodes queries as the encoder that it is a side of, whose fingerprint it has."""

    name: str
    fingerprint: str
    terms: QueryTerms
    tokenizer: Tokenizer
    settings: SparseSettings

    def encode_queries(self, texts: Sequence[str]) -> csr_matrix:
        """One row of weights per query."""
        settings = self.settings
        rows = self.tokenizer.encode(settings.as_queries(texts), settings.query_max_length)
        weights = self.terms.matrix(rows, self.tokenizer.special_ids)
        return heaviest(weights, settings.query_terms)

    def has_tokens(self, text: str) -> bool:
        """Whether anything of a text is left to weigh."""
        return self.tokenizer.has_tokens(text)
