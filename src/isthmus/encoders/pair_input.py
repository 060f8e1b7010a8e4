"""How a query and a document become one row of tokens, as a tokenizer puts two texts together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.encoders.encoder import EncoderSettings, pad
from isthmus.text.tokenizer import Tokenizer

Tokens = Sequence[int] | npt.NDArray[np.integer]


class Pairing:
    """Pairs of at most query_max_length + document_max_length tokens, special ones included.

    Only a pair that does not fit is cut. Its query then keeps at least query_max_length, and its
    document gets what the query leaves: with halves, sentence-transformers' `longest_first`.
    """

    def __init__(self, tokenizer: Tokenizer, settings: EncoderSettings) -> None:
        self.max_length = settings.query_max_length + settings.document_max_length
        self.pad_id = tokenizer.pad_id
        # A pair is taken as the example for all: whatever stands around its texts is the frame.
        example = tokenizer.backend.encode("a", "b", add_special_tokens=True)
        ids = np.array(example.ids, dtype=np.int64)
        # A tokenizer that hands no segments out (ModernBERT's) numbers them all the same.
        used = "token_type_ids" in tokenizer.pretrained.model_input_names
        segments = np.array(example.type_ids, dtype=np.int64) * used
        owners = np.array([-1 if owner is None else owner for owner in example.sequence_ids])
        query, document = np.flatnonzero(owners == 0), np.flatnonzero(owners == 1)
        assert min(len(query), len(document)), "the tokenizer leaves nothing of a letter"
        assert query[-1] < document[0], "the tokenizer puts the second text first"
        gaps = np.split(
            np.arange(len(ids)), [query[0], query[-1] + 1, document[0], document[-1] + 1]
        )
        self._frame = [ids[gap] for gap in (gaps[0], gaps[2], gaps[4])]
        # Of the frame, and of each text once, at places that are known.
        kept = np.concatenate([gaps[0], query[:1], gaps[2], document[:1], gaps[4]])
        self._segments = segments[kept]
        self._texts = np.searchsorted(kept, [query[0], document[0]])
        self.room = self.max_length - sum(len(part) for part in self._frame)
        self._query_room = settings.query_max_length - len(tokenizer.prefix + tokenizer.suffix)

    def pad(
        self, queries: Sequence[Tokens], documents: Sequence[Tokens]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, mask and segment numbers of some pairs, filled up to the longest."""
        pairs = [self.cut(*texts) for texts in zip(queries, documents, strict=True)]
        before, between, after = self._frame
        parts = [(before, query, between, text, after) for query, text in pairs]
        rows = [np.concatenate(row, dtype=np.int64, casting="unsafe") for row in parts]  # [] floats
        ids, mask = pad(rows, self.pad_id)
        # How many tokens have each segment number of the example: one, but for the texts.
        counts = np.ones((len(pairs), len(self._segments)), dtype=np.int64)
        counts[:, self._texts] = [(len(query), len(text)) for query, text in pairs]
        numbers = np.repeat(np.tile(self._segments, len(pairs)), counts.ravel())
        segments = torch.zeros_like(ids)
        segments[mask.bool()] = torch.from_numpy(numbers)
        return ids, mask, segments

    def cut(self, query: Tokens, document: Tokens) -> tuple[Tokens, Tokens]:
        """What is read of both texts of a pair."""
        if len(query) + len(document) > self.room:
            query = query[: max(self._query_room, self.room - len(document))]
            document = document[: self.room - len(query)]
        return query, document
