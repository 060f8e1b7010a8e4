"""Vectors as weights of the vocabulary's tokens: what a text's vector names.

A dense vector is projected by the masked-LM head of its model, as "Drop your Decoder" (SIGIR 2024,
section 3.2) does; a sparse one has its weights already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from isthmus.encoders.dense import DenseEncoder
from isthmus.encoders.encoder import pad
from isthmus.encoders.sparse import SparseEncoder
from isthmus.pretraining.objectives.bag_of_words import token_sets
from isthmus.records import Document

_AT_ONCE = 32  # texts, of which each has a weight for every token
_NOTHING = -torch.inf


def no_own_head(encoder: DenseEncoder | SparseEncoder) -> str:
    """Why an encoder's own head cannot read its vectors; "" where it can."""
    if isinstance(encoder, SparseEncoder):
        return ""
    if not encoder.backbone.has_head:
        return f"{encoder.name} has no masked-LM head"
    if encoder.projection is not None or encoder.settings.truncate_dim is not None:
        return f"the vectors of {encoder.name} are not states of the model, as its head reads them"
    return ""


class VocabularyView:
    """The texts that an encoder reads, as weights of tokens and as sets of tokens."""

    def __init__(self, encoder: DenseEncoder | SparseEncoder) -> None:
        assert not no_own_head(encoder)
        self.encoder = encoder

    def weights(
        self, texts: Sequence[str], queries: bool = False
    ) -> Iterator[tuple[Sequence[str], Tensor]]:
        """Some texts at a time, and the weights of every token [texts, vocabulary].

        Minus infinity is a token without weight in a sparse vector, which is not named.
        """
        for start in range(0, len(texts), _AT_ONCE):
            block = texts[start : start + _AT_ONCE]
            yield block, self._weights(block, queries)

    def sets(self, texts: Sequence[str], queries: bool = False) -> Tensor:
        """True for the tokens [texts, vocabulary] that the encoder reads of each text itself.

        Neither those of prompts count, nor special ones, nor rows that only pad the matrix.
        """
        tokenizer, settings = self.encoder.tokenizer, self.encoder.settings
        room = settings.room(tokenizer)
        if queries:
            (prompt,) = tokenizer.split([settings.query_prompt])
            frame = len(tokenizer.prefix) + len(tokenizer.suffix) + len(prompt)
            room = max(1, settings.query_max_length - frame)
        # Such a token stands before each row, so that none is empty, and fills the others up.
        filling = int(tokenizer.special_ids[0])
        rows = [[filling, *encoding.ids[:room]] for encoding in tokenizer.split(list(texts))]
        return token_sets(pad(rows, filling)[0], special_tokens(self.encoder))

    def named(
        self, texts: Sequence[str], top: int, queries: bool = False
    ) -> list[dict[int, float]]:
        """The tokens of the largest weights of each text, largest first, with these."""
        found = []
        for _, weights in self.weights(texts, queries):
            values, places = weights.topk(min(top, weights.shape[1]))
            for row, tokens in zip(values.tolist(), places.tolist(), strict=True):
                pairs = zip(tokens, row, strict=True)
                found.append({token: weight for token, weight in pairs if weight > _NOTHING})
        return found

    def _weights(self, texts: Sequence[str], queries: bool) -> Tensor:
        encoder = self.encoder
        documents = [Document("", text) for text in texts]
        if isinstance(encoder, DenseEncoder):
            rows = encoder.tokenise_queries(texts) if queries else encoder.tokenise(documents)
            return encoder.vocabulary_logits(rows, queries)
        vectors: Any = (
            encoder.encode_queries(texts) if queries else encoder.encode_documents(documents)
        )
        weights = torch.from_numpy(vectors.toarray())
        return weights.masked_fill(weights == 0, _NOTHING)


def special_tokens(encoder: DenseEncoder | SparseEncoder) -> Tensor:
    """True for what is no token of a text: special tokens, and rows that pad the matrix."""
    special = torch.zeros(len(encoder.backbone.word_embeddings), dtype=torch.bool)
    special[torch.from_numpy(encoder.tokenizer.special_ids)] = True
    special[len(encoder.tokenizer) :] = True
    return special
