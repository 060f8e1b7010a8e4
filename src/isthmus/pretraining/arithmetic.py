"""The matrix products that training a recipe cannot do without, for parts to count their own.

Counted: every layer for the real tokens, attention for the pairs that may see each other, a head
for the rows whose logits are read; of the last layer, keys and values of all tokens and the rest of
those rows. Not counted: padding, states and logits that nothing reads, and all that is no matrix
product (LayerNorm, dropout, softmax, embeddings, the optimiser: a few per cent).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from isthmus.nn.vocabulary_product import IGNORED
from isthmus.pretraining.vocabulary import Vocabulary
from isthmus.training.task import Batch

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


@dataclass(frozen=True)
class Texts:
    """The contents of one batch, as far as arithmetic depends on them."""

    lengths: tuple[int, ...]  # of every row, without padding
    inside: int  # tokens that are not special
    labelled: tuple[int, ...] = ()  # of every row
    decoder_labelled: tuple[int, ...] = ()

    @classmethod
    def of(cls, batch: Batch, vocabulary: Vocabulary) -> Texts:
        """Counts a prepared batch; synchronises with the device."""
        return cls(
            lengths=tuple(batch["attention_mask"].sum(1).tolist()),
            inside=int((~vocabulary.is_special(batch["input_ids"])).sum()),
            labelled=_labelled(batch.get("labels")),
            decoder_labelled=_labelled(batch.get("decoder_labels")),
        )


def _labelled(labels: Tensor | None) -> tuple[int, ...]:
    return () if labels is None else tuple((labels != IGNORED).sum(1).tolist())


def pairs(lengths: Sequence[int], reach: int | None = None) -> int:
    """How many (row, column) pairs of texts see each other, `reach` tokens to either side."""
    if reach is None:
        return sum(length * length for length in lengths)
    return sum(length + 2 * _behind(length, reach) for length in lengths)


def causal_pairs(lengths: Sequence[int], window: int | None = None) -> int:
    """How many pairs where a row sees itself and what precedes it: all, or a window and slot 0."""
    if window is None:
        return sum(length * (length + 1) // 2 for length in lengths)
    # Slot 0 is in the window of the first `window` rows already.
    return sum(length + _behind(length, window - 1) + max(0, length - window) for length in lengths)


def _behind(length: int, reach: int) -> int:
    """Pairs of a row and a column at most `reach` before it, in a text of `length` tokens."""
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
    shape: Shape, texts: Texts, layers: int, seen: int, read: Sequence[int] | None = None
) -> int:
    """Operations of training a decoder: layers with `seen` pairs in each, and its labels' logits.

    Of the last layer, `read` states of each text, or all.
    """
    states = layers * (sum(texts.lengths) * shape.layer + attention(shape.width, seen))
    states -= spared(shape.width, shape.layer, texts.lengths, read)
    return TRAINED * (states + prediction(shape, sum(texts.decoder_labelled)))
