"""The arithmetic that training a recipe cannot do without, in multiply-adds of one forward pass.

Counted: every layer for the real tokens, attention for the pairs that may see each other, a head
for the rows that somebody reads; of the last layer, keys and values of all tokens and the rest of
those. Not counted: padding, states and logits nobody asked for, and all that is no matrix product
(LayerNorm, dropout, softmax, embeddings, the optimiser: a few per cent).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A multiply-add is two operations. The backward pass has two products for each of the forward
# pass: for the gradient of what went in, and for that of the matrix.
FORWARD = 2
TRAINED = 2 * 3
FIXED = 2 * 2  # the matrix is not trained: it needs no gradient


@dataclass(frozen=True)
class Shape:
    """The matrices of a model, in multiply-adds for one row of states."""

    width: int
    linear: int  # of all linear maps below the head
    reaches: tuple[int | None, ...]  # of each layer's attention, to either side; None: everywhere
    head: int  # of the head, but for the vocabulary
    vocabulary: int  # terms times their width
    layer: int  # of the linear maps of one layer of a decoder
    last: int  # of those of the encoder's last layer


def pairs(lengths: Sequence[int], reach: int | None = None) -> int:
    """How many (row, column) pairs of texts see each other, `reach` tokens to either side."""
    if reach is None:
        return sum(length * length for length in lengths)
    return sum(length + 2 * _behind(length, reach) for length in lengths)


def causal_pairs(lengths: Sequence[int], window: int | None = None) -> int:
    """The same where a row sees itself and what lies behind it: all, or a window and slot 0."""
    if window is None:
        return sum(length * (length + 1) // 2 for length in lengths)
    # Slot 0 is in the window of the first `window` rows already.
    return sum(length + _behind(length, window - 1) + max(0, length - window) for length in lengths)


def _behind(length: int, reach: int) -> int:
    """Pairs of a row and a column at most `reach` behind it, in a text of `length` tokens."""
    near = min(reach, length - 1)
    return near * length - near * (near + 1) // 2


def attention(width: int, seen: int) -> int:
    """Scores and their mixture, for so many pairs: two products of all heads together."""
    return 2 * width * seen


def encoder(shape: Shape, lengths: Sequence[int], read: Sequence[int] | None = None) -> int:
    """Every layer of the backbone; of the last, so many states of each text, or all.

    Of a last layer with a window, all: which pairs are spared would depend on their places.
    """
    seen = sum(pairs(lengths, reach) for reach in shape.reaches)
    total = sum(lengths) * shape.linear + attention(shape.width, seen)
    return total if shape.reaches[-1] else total - spared(shape.width, shape.last, lengths, read)


def spared(width: int, layer: int, lengths: Sequence[int], read: Sequence[int] | None) -> int:
    """What a layer need not do where only so many of each text's states are read."""
    if read is None:
        return 0
    unread = [length - some for length, some in zip(lengths, read, strict=True)]
    seen = sum(length * some for length, some in zip(lengths, unread, strict=True))
    return sum(unread) * (layer - 2 * width**2) + attention(width, seen)


def prediction(shape: Shape, rows: int) -> int:
    """The head of so many rows, up to their logits."""
    return rows * (shape.head + shape.vocabulary)


def decoder(
    shape: Shape, lengths: Sequence[int], layers: int, seen: int, read: Sequence[int] | None = None
) -> int:
    """So many layers of a decoder, with so many pairs in each; of the last, the states read."""
    total = layers * (sum(lengths) * shape.layer + attention(shape.width, seen))
    return total - spared(shape.width, shape.layer, lengths, read)
