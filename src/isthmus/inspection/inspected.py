"""What an inspection of texts found, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

from isthmus.evaluation.tables import Cell, Shown, Table

if TYPE_CHECKING:
    from isthmus.inspection.coverage import Coverage

_LONGEST = 300  # characters of a text that a caption shows


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token that a vector names, its weight, and whether the text has it."""

    token: str
    weight: float
    in_text: bool


@dataclass(frozen=True, slots=True)
class NamedTokens:
    """What the vector that one model makes of a text names, largest weights first.

    `coverage` is the share of the text's distinct tokens among them. Of a sparse vector, `tokens`
    are all terms of the text that have a weight and the heaviest others; `terms` and `expansion`
    say how many of each there are, and `dropped` are tokens of the text without a weight.
    """

    model: str
    kind: Literal["dense", "sparse"]
    coverage: float
    tokens: tuple[NamedToken, ...]
    terms: int | None = None
    expansion: int | None = None
    dropped: tuple[str, ...] | None = None

    @property
    def summary(self) -> str:
        """One line below the tokens."""
        if self.terms is None:
            return f"coverage {self.coverage:.0%}"
        dropped = f"; dropped: {', '.join(self.dropped)}" if self.dropped else "; nothing dropped"
        return f"{self.terms} of the text, {self.expansion} more{dropped}"


@dataclass(frozen=True, slots=True)
class InspectedText:
    """A text, and what its vector names, by model."""

    text: str
    models: tuple[NamedTokens, ...]

    def table(self) -> Table:
        """A column per model; ✓ is a token of the text, ✗ another, + an expansion."""
        listed = ([_cell(token, one.kind) for token in one.tokens] for one in self.models)
        rows = [
            (Cell(str(rank), quiet=True), *(cell or Cell("") for cell in row))
            for rank, row in enumerate(zip_longest(*listed), start=1)
        ]
        rows.append((Cell(""), *(Cell(one.summary) for one in self.models)))
        shown = " ".join(self.text.split())
        shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]} …"
        columns = ("", *(one.model for one in self.models))
        return Table(columns, tuple(rows), f"“{shown}”", names=len(columns))


@dataclass(frozen=True, slots=True)
class MaskedWord:
    """A word of a text, and by masking the chance that a token of it is masked."""

    word: str
    chances: dict[str, float]


@dataclass(frozen=True, slots=True)
class MaskedText:
    """The words of a text in their order, and how often a recipe masks them."""

    text: str
    words: tuple[MaskedWord, ...]
    draws: int

    def table(self) -> Table:
        """A row per word, a column per masking of the recipe."""
        rows = tuple(
            (Cell(one.word), *(Cell(f"{chance:.0%}") for chance in one.chances.values()))
            for one in self.words
        )
        caption = f"How often of {self.draws:,} draws the recipe masks a word."
        return Table(("word", *self.words[0].chances), rows, caption)


@dataclass(frozen=True, repr=False)
class Inspection(Shown):
    """What the vectors of texts name, model by model, and how much they cover over a corpus.

    Of an inspection of a recipe, how often it masks the words of the texts.
    """

    texts: tuple[InspectedText, ...] = ()
    coverage: Coverage | None = None
    masked: tuple[MaskedText, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return asdict(self)

    def to_json(self) -> str:
        """Everything, as a text."""
        return json.dumps(self.as_dict(), ensure_ascii=False, indent=2)

    def tables(self) -> Iterator[Table]:
        """A table per text, and that of the coverage."""
        yield from (one.table() for one in self.texts)
        yield from (one.table() for one in self.masked)
        if self.coverage is not None:
            yield self.coverage.table()


def _cell(token: NamedToken, kind: Literal["dense", "sparse"]) -> Cell:
    other = "+" if kind == "sparse" else "✗"
    mark = "✓" if token.in_text else other
    return Cell(f"{mark} {token.token} {token.weight:.2f}", quiet=not token.in_text)
