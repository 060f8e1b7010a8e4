"""How a query and a document become one row of tokens, as a tokenizer puts two texts together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.encoders.encoder import EncoderSettings
from isthmus.text.tokenizer import Tokenizer

Tokens = Sequence[int] | npt.NDArray[np.integer]
Row = npt.NDArray[np.int64]


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
        self._frame = [(ids[gap], segments[gap]) for gap in (gaps[0], gaps[2], gaps[4])]
        self._segments = segments[query[0]], segments[document[0]]
        self.room = self.max_length - sum(len(part) for part, _ in self._frame)
        self._query_room = settings.query_max_length - len(tokenizer.prefix + tokenizer.suffix)

    def pair(self, query: Tokens, document: Tokens) -> tuple[Row, Row]:
        """Ids and segment numbers of one pair, from token ids without special ones."""
        if len(query) + len(document) > self.room:
            query = query[: max(self._query_room, self.room - len(document))]
            document = document[: self.room - len(query)]
        before, between, after = self._frame
        parts = [before, self._text(query, 0), between, self._text(document, 1), after]
        ids, segments = zip(*parts, strict=True)
        return np.concatenate(ids), np.concatenate(segments)

    def pad(
        self, queries: Sequence[Tokens], documents: Sequence[Tokens]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, mask and segment numbers of some pairs, filled up to the longest."""
        rows = [self.pair(*texts) for texts in zip(queries, documents, strict=True)]
        shape = (len(rows), max(len(ids) for ids, _ in rows))
        ids = np.full(shape, self.pad_id, dtype=np.int64)
        mask, segments = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for number, (row, segment) in enumerate(rows):
            ids[number, : len(row)] = row
            mask[number, : len(row)] = 1
            segments[number, : len(row)] = segment
        return torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(segments)

    def _text(self, tokens: Tokens, side: int) -> tuple[Row, Row]:
        return np.asarray(tokens, dtype=np.int64), np.full(len(tokens), self._segments[side])
