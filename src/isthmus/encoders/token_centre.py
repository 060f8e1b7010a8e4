"""The mean of an encoder's token vectors, on texts that its own vocabulary is drawn for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isthmus.indexes.ragged import Both
from isthmus.records import Document

if TYPE_CHECKING:
    from isthmus.encoders import DenseEncoder, MultiVectorEncoder

_TEXTS, _TOKENS = 64, 62
_DIGITS = 3  # so coarse that the centre is the same on nearly every machine
_SEED = 0


def token_centre(encoder: DenseEncoder | MultiVectorEncoder) -> list[float]:
    """The mean vector of tokens, of texts drawn from the vocabulary: no corpus is needed for it."""
    tokenizer = encoder.tokenizer
    room = min(_TOKENS, encoder.settings.room(tokenizer))
    drawn = np.random.default_rng(_SEED).choice(tokenizer.regular_ids, (_TEXTS, room))
    texts = [tokenizer.backend.decode(row.tolist()) for row in drawn]
    found = encoder.encode_documents([Document("", text) for text in texts])
    vectors = (found.tokens if isinstance(found, Both) else found).vectors.values
    mean = vectors.mean(axis=0, dtype=np.float64) if len(vectors) else np.zeros(vectors.shape[1])
    return [float(number) for number in mean.round(_DIGITS)]
