"""Which words of a text answered which words of a query, where tokens were compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.indexes.index import Index, Products
from isthmus.indexes.languages import FIRST_UNSPACED
from isthmus.indexes.manifest import TokensField
from isthmus.records import Document
from isthmus.retrieval.snippets import has_content, is_unspaced, pattern_of_words

_COMMONER = 0.5  # as rare as the rarest that shares its vector, a word may be what answered
_NEAR = 0.25  # of the way from a word of the text to the very word of the query
_SPACE, _NO_BREAK = 0x20, 0xA0
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Word:
    """A word and where it is in the text that is shown; nowhere in one of a title or heading."""

    text: str
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A word of a query, and the words of a text that are nearest to it.

    The product is a mean over its tokens by weight; times its weight, it adds that to the score.
    """

    word: str
    weight: float
    product: float
    contribution: float
    answers: tuple[Word, ...]


@dataclass(frozen=True)
class Read:
    """A text as an encoder read it: tokens that have vectors, and the words that these are of.

    The `spans` are those of words; -1, -1 for what is of no character of the text. The text that is
    shown begins after so many characters of title and headings.
    """

    text: str
    ids: Ids
    spans: Ids
    before: int
    tokenizer: Any

    @classmethod
    def of(cls, text: str, given: tuple[Ids, Ids], before: int, encoder: Any) -> Read:
        """A text, the tokens of which an encoder places so."""
        ids, spans = given
        return cls(text, ids, _whole_words(text, spans), before, encoder.tokenizer)

    @cached_property
    def content(self) -> list[list[int]]:
        """The tokens of each word that says what it is about; of every word where none does."""
        words = self.words(range(len(self.ids)))
        found = [
            tokens
            for word, tokens in words.items()
            if word.start is not None and has_content(word.text)
        ]
        return found or list(words.values())

    def words(self, tokens: Iterable[int]) -> dict[Word, list[int]]:
        """The words that these tokens are of, in their order, each with its tokens."""
        found: dict[Word, list[int]] = {}
        for token in tokens:
            found.setdefault(self._word(token), []).append(token)
        return found

    def _word(self, token: int) -> Word:
        start, end = self.spans[token].tolist()
        if start < 0:
            (name,) = self.tokenizer.names([int(self.ids[token])])
            return Word(name)
        word, before = self.text[start:end], self.before
        return Word(word) if start < before else Word(word, start - before, end - before)


@dataclass(frozen=True)
class Matched:
    """A query and a text, of which tokens were compared.

    `products` are those of each stored vector of the text, a row, with each token of the query; so
    many neighbouring tokens as `pooling` says share a vector.
    """

    query: Read
    text: Read
    weights: npt.NDArray[np.float64]
    products: Floats
    pooling: int
    rarity: Callable[[Ids], Floats]

    def matches(self) -> tuple[Match, ...]:
        """What each word of the query adds to the score, in their order."""
        best, nearest = self.products.max(0).astype(np.float64), self.products.argmax(0).tolist()
        found = []
        for word, tokens in self.query.words(range(len(best))).items():
            weights = self.weights[tokens]
            adds, weight = float(best[tokens] @ weights), float(weights.sum())
            product = adds / weight if weight else float(best[tokens].mean())
            places = {place for token in tokens for place in self.answering(token, nearest[token])}
            answers = tuple(self.text.words(sorted(places)))
            found.append(Match(word.text, weight, product, adds, answers))
        return tuple(found)

    def best_place(self, width: int) -> int:
        """The place in the text that is shown from which on so many characters answer best.

        As many of its tokens are compared with the query as if they were a text of their own.
        """
        starts = self.text.spans[:: self.pooling, 0] - self.text.before
        rows = np.flatnonzero(starts >= 0)
        if not len(rows):
            return 0
        starts = np.maximum.accumulate(starts[rows])
        tokens = [token for found in self.query.content for token in found]
        ends = np.searchsorted(starts, starts + width)
        edges = np.stack([np.arange(len(rows)), ends], axis=1).ravel()
        # A row of its own after the last, where windows end; nothing is nearest to it.
        products = np.pad(self.products[rows][:, tokens], ((0, 1), (0, 0)), constant_values=-1)
        best = np.maximum.reduceat(products, edges, axis=0)[::2]
        scores = (best @ self.weights[tokens])[::-1]
        # The last of those that are equal: it begins with a word that counts.
        return int(starts[::-1][scores.argmax()])

    def nearest_words(self) -> list[str]:
        """The words of the text that are far nearer to a word of the query than others of it."""
        best, nearest = self.products.max(0), self.products.argmax(0).tolist()
        middle = self.products.mean(0)
        near = (best - middle) / np.maximum(1 - middle, np.finfo(np.float32).tiny)
        places: set[int] = set()
        for tokens in self.query.content:
            if near[tokens] @ self.weights[tokens] >= _NEAR * self.weights[tokens].sum():
                for token in tokens:
                    places.update(self.answering(token, nearest[token]))
        return [word.text for word in self.text.words(sorted(places))]

    def answering(self, token: int, vector: int) -> list[int]:
        """Of the tokens that share a vector, those that one of the query may be nearest to.

        It is the same token, or those that are not much commoner than the rarest of them.
        """
        first = vector * self.pooling
        ids = self.text.ids[first : first + self.pooling]
        if len(ids) == 1:
            return [first]
        chosen = ids == self.query.ids[token]
        if not chosen.any():
            rarity = self.rarity(ids)
            chosen = rarity >= _COMMONER * rarity.max()
        return [first + place for place in np.flatnonzero(chosen).tolist()]


def matched(
    index: Index,
    field: str,
    encoder: Any,
    vectors: Any,
    query: str,
    shown: Sequence[Document],
) -> list[Matched | None]:
    """How each row of a field of token vectors meets a query; None where that cannot be said.

    The rows are documents or passages as the index gives them, the vectors those of the query.
    """
    about = index.manifest.field(field)
    assert isinstance(about, TokensField)
    pooling, rarity = about.pooling, index.rarity(field).weights
    ids = [one.id for one in shown]
    products = index.products(field, vectors, ids, encoder.encode_documents)
    (place,) = encoder.token_places([query], queries=True)
    asked = Read.of(query, place, 0, encoder)
    contents = [one.contents(about.titles) for one in shown]
    found: list[Matched | None] = []
    places = encoder.token_places(contents)
    for one, text, place in zip(shown, contents, places, strict=True):
        given: Products = products[one.id]
        if given.found.shape != (-(-len(place[0]) // pooling), len(asked.ids)):
            found.append(None)  # of an index that was made to do harm
            continue
        read = Read.of(text, place, len(text) - len(one.text), encoder)
        found.append(Matched(asked, read, given.weights, given.found, pooling, rarity))
    return found


def _whole_words(text: str, spans: Ids) -> Ids:
    """Where the words begin and end that tokens are of; tokens that are of none stay as they are.

    So do those of scripts without spaces between words.
    """
    if not text:
        return np.full_like(spans, -1)
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    starts, ends = spans[:, 0].copy(), spans[:, 1].copy()
    there = starts < ends
    first = characters[np.where(there, starts, 0)]
    while (blank := there & ((first <= _SPACE) | (first == _NO_BREAK))).any():
        starts += blank
        there = starts < ends
        first = characters[np.where(there, starts, 0)]
    found = [run.span() for run in pattern_of_words(text).finditer(text)]
    if found:
        runs = np.fromiter(chain.from_iterable(found), np.int64, 2 * len(found)).reshape(-1, 2)
        at = np.searchsorted(runs[:, 0], starts, side="right") - 1
        inside = there & (at >= 0) & (starts < runs[at, 1])
        for token in np.flatnonzero(inside & (first >= ord(FIRST_UNSPACED))).tolist():
            inside[token] = not is_unspaced(text[starts[token]])
        starts, ends = np.where(inside, runs[at, 0], starts), np.where(inside, runs[at, 1], ends)
    return np.where(there[:, None], np.stack([starts, ends], axis=1), -1)
