"""What a pre-training step is fed: the texts that a view shows, framed and padded."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from isthmus.errors import InputError
from isthmus.nn.packing import steady_width, token_places
from isthmus.nn.randomness import key, second
from isthmus.pretraining.parts import Column
from isthmus.pretraining.views import Text, View
from isthmus.text.corpus import TokenisedCorpus
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch, Examples

Integers = npt.NDArray[np.int64]
_SIZES = 8  # of which, in steady batches, the number of `word_sizes` is a multiple


def check_texts(corpus: TokenisedCorpus, name: str) -> None:
    """Raises if no text has two tokens: nothing would be left when one is hidden."""
    longest = int(corpus.lengths.max(initial=0))
    if longest < 2:
        raise InputError(
            f"none of the {len(corpus):,} documents of {name} is longer than one token",
            "check that the corpus has a text field, and that the tokenizer fits its script",
        )


@dataclass(frozen=True, slots=True)
class Example:
    """The texts of one document in one epoch, their columns, and the key of their randomness."""

    texts: tuple[Text, ...]
    columns: tuple[Mapping[str, npt.NDArray[Any]], ...]
    key: int


class PretrainExamples(Examples):
    """The texts that a view shows of a tokenised corpus.

    `rows` are the documents to learn from; all of them when None.
    """

    def __init__(
        self,
        corpus: TokenisedCorpus,
        view: View,
        tokenizer: Tokenizer,
        max_length: int,
        seed: int,
        columns: Mapping[str, Column] | None = None,
        rows: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.corpus = corpus
        self.view = view
        self.prefix, self.suffix = tokenizer.prefix, tokenizer.suffix
        self.pad_id = tokenizer.pad_id
        self.special = tokenizer.special_ids
        self.room = max_length - len(self.prefix) - len(self.suffix)
        self.seed = seed
        self.columns = columns or {}
        self.rows = np.arange(len(corpus)) if rows is None else rows

    def of(self, rows: npt.NDArray[np.int64]) -> PretrainExamples:
        """The same of other documents, padded no further than need be."""
        other = copy(self)
        other.rows, other.steady = rows, False
        return other

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """About how many tokens of each document the encoder will see, special ones included."""
        shown = self.view.length(self.corpus.lengths[self.rows], self.room)
        return self.view.rows * (shown + len(self.prefix) + len(self.suffix))

    def __getitem__(self, position: tuple[int, int]) -> Example:
        """The example of (epoch, row)."""
        epoch, index = position
        row = int(self.rows[index])
        drawn = key(self.seed, epoch, row)
        texts = self.view(self.corpus[row], self.room, drawn)
        whole = {name: column[row] for name, column in self.columns.items()}
        columns = tuple(
            {
                name: values[text.start : text.start + len(text.tokens)]
                for name, values in whole.items()
            }
            for text in texts
        )
        return Example(texts, columns, drawn)

    def collate(self, examples: list[Example]) -> Batch:
        """All first texts, then all second ones: ids, mask, words (-1: special), keys, partner.

        `tokens`, the places of what is not padding, and `regular`, of what is not special either,
        are found here: finding them on the training device would synchronise with it. So are
        `word_sizes`, the different sizes of words in the text that has most of them.
        Steady, all three are filled up to one of a few lengths: with places of padding, -1 and 0;
        and the batch is padded to one of a few widths.
        """
        sides = range(self.view.rows)
        texts = [example.texts[side] for side in sides for example in examples]
        start, frame = len(self.prefix), len(self.prefix) + len(self.suffix)
        lengths = np.array([len(text.tokens) for text in texts])
        width = self._width(int(lengths.max()) + frame)
        place = np.arange(width)
        inside = (place >= start) & (place < start + lengths[:, None])
        ids = np.full((len(texts), width), self.pad_id, dtype=np.int64)
        ids[:, :start] = self.prefix
        ids[inside] = np.concatenate([text.tokens for text in texts])
        ends = (start + lengths)[:, None] + np.arange(len(self.suffix))
        np.put_along_axis(ids, ends, np.asarray(self.suffix)[None], axis=1)
        mask = torch.from_numpy((place < lengths[:, None] + frame).astype(np.int64))
        words = np.full((len(texts), width), -1, dtype=np.int64)
        words[inside] = _numbered(np.concatenate([text.words for text in texts]), lengths)
        first = [example.key for example in examples]
        keys = first if self.view.rows == 1 else first + [second(drawn) for drawn in first]
        partner = np.roll(np.arange(len(texts)), len(examples))
        regular = np.isin(ids, self.special, invert=True)
        batch = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": mask,
            "words": torch.from_numpy(words),
            "keys": torch.tensor(keys, dtype=torch.int64),
            "partner": torch.from_numpy(partner),
            "tokens": (tokens := token_places(mask, self.steady)),
            "regular": torch.from_numpy(
                self._filled(np.flatnonzero(regular), len(tokens) - frame * len(texts))
            ),
            "word_sizes": torch.from_numpy(self._sizes(np.where(regular, words, -1))),
        }
        if self.view.rows > 1:
            repeated = [len({text.start for text in example.texts}) == 1 for example in examples]
            batch["repeated"] = torch.tensor(repeated * self.view.rows)
        for name in self.columns:
            parts = [example.columns[side][name] for side in sides for example in examples]
            batch[name] = torch.from_numpy(_padded(parts, start, width))
        return batch

    def _width(self, longest: int) -> int:
        limit = self.room + len(self.prefix) + len(self.suffix)
        return steady_width(longest, limit) if self.steady else longest

    def _filled(self, places: Integers, most: int) -> Integers:
        """Pads places with -1 to `most` in steady batches, so that shapes repeat."""
        more = max(most - len(places), 0) if self.steady else 0
        return np.concatenate([places, np.full(more, -1)])

    def _sizes(self, words: Integers) -> Integers:
        sizes = most_sizes(words)
        more = -len(sizes) % _SIZES if self.steady else 0
        return np.concatenate([sizes, np.zeros(more, dtype=np.int64)])


def _numbered(words: npt.NDArray[np.int32], lengths: Integers) -> Integers:
    """The words of each text counted from 0 without gaps, so that no number exceeds its tokens.

    All texts one after the other, of these lengths; -1 stays.
    """
    inside = words >= 0
    begins = inside & (np.diff(words, prepend=-2) != 0)
    starts = np.cumsum(lengths) - lengths
    some = starts[lengths > 0]
    begins[some] = inside[some]
    counted = np.cumsum(begins)
    before = np.concatenate([[0], counted])[starts]
    return np.where(inside, counted - np.repeat(before, lengths) - 1, -1)


def most_sizes(words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The numbers of tokens that words have, of the text [rows, tokens] where they differ most."""
    rows, width = words.shape
    own = np.arange(rows)[:, None] * (width + 1)
    tokens = np.bincount((own + words + 1).ravel(), minlength=rows * (width + 1))
    sizes = tokens.reshape(rows, width + 1)
    sizes[:, 0] = 0  # of no word
    seen = np.bincount((own + sizes).ravel(), minlength=rows * (width + 1)).reshape(rows, -1) > 0
    seen[:, 0] = False
    return np.flatnonzero(seen[seen.sum(1).argmax()])


def _padded(parts: list[npt.NDArray[Any]], start: int, width: int) -> npt.NDArray[Any]:
    """Rows of unequal length after the opening special tokens; NaN around them."""
    padded = np.full((len(parts), width, *parts[0].shape[1:]), np.nan, dtype=np.float32)
    for row, values in enumerate(parts):
        padded[row, start : start + len(values)] = values
    return padded
