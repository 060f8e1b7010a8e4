"""The n-grams of a tokenised corpus, piece by piece: whole arrays, never one document at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from isthmus.text.corpus import TokenisedCorpus, flat_tokens
from isthmus.text.tokenizer import Tokenizer

ORDERS = (1, 2, 3, 4)
LONGEST = ORDERS[-1]
Tokens = npt.NDArray[np.uint32]
Piece = list[tuple[Path, int, int]]
"""A stretch of the corpus: of each block file the first token, and the one after the last."""


def regular_tokens(tokenizer: Tokenizer) -> npt.NDArray[np.bool_]:
    """Whether each id may be part of an n-gram: all but the special ones."""
    highest = max(tokenizer.backend.get_vocab(with_added_tokens=True).values())
    regular = np.ones(highest + 1, dtype=np.bool_)
    regular[tokenizer.special_ids] = False
    return regular


def cut(corpus: TokenisedCorpus, size: int) -> Iterator[Piece]:
    """The corpus in pieces of `size` tokens, wherever documents and blocks begin."""
    piece: Piece = []
    room = size
    for file in corpus.files:
        start, end = 0, len(flat_tokens(file)[0])
        while start < end:
            stop = min(end, start + room)
            piece.append((file, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield piece
                piece, room = [], size
    if piece:
        yield piece


def read(piece: Piece, regular: npt.NDArray[np.bool_]) -> tuple[Tokens, npt.NDArray[np.uint8]]:
    """The tokens of a piece and three more, and the longest n-gram that starts at each (0 to 4)."""
    length = sum(stop - start for _, start, stop in piece)
    tokens = np.zeros(length + LONGEST - 1, dtype=np.uint32)
    joined = np.zeros(length + LONGEST - 1, dtype=np.bool_)  # with the token that follows
    filled = 0
    for file, start, stop in piece:
        flat, offsets = flat_tokens(file)
        seen = flat[start : stop + LONGEST - 1]  # beyond `stop` at the end of the piece only
        tokens[filled : filled + len(seen)] = seen
        joined[filled : filled + len(seen)] = True
        inside = np.searchsorted(offsets, [start, start + len(seen)], side="right")
        ends = offsets[inside[0] : inside[1]].astype(np.int64) - start
        joined[filled + ends - 1] = False
        filled += stop - start
    assert tokens.max(initial=0) < len(regular), "another tokenizer made the corpus"
    good = regular[tokens]
    joined[:-1] &= good[1:]
    reach = np.ones(length, dtype=np.uint8)
    for place in reversed(range(LONGEST - 1)):
        reach *= joined[place : place + length]
        reach += 1
    reach *= good[:length]
    return tokens, reach


def windows_of(tokens: Tokens, order: int) -> npt.NDArray[np.uint32]:
    """The n-gram that starts at each token of what `read` gives: [n, order], a view."""
    length = len(tokens) - LONGEST + 1
    return np.lib.stride_tricks.sliding_window_view(tokens, order)[:length]
