"""Documents, with or without judged queries, as the rest of the project reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, Self, TypeVar

from isthmus.collections.problems import Problems
from isthmus.errors import SettingsError, choices
from isthmus.records import Document, Query

T = TypeVar("T")


class Corpus(ABC):
    """Documents that can be read any number of times, one after the other."""

    in_passages: ClassVar[bool] = False
    """Whether its documents are indexed in passages where settings leave that open."""
    spec: str | None = None
    """What it was opened as; None where it was made otherwise."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec!r})"

    @classmethod
    def open(cls, location: str, problems: Problems) -> Self:
        """The corpus at a location: the part after the scheme in `scheme:location`.

        A reader that is made of anything else says here how.
        """
        return cls(location, problems)  # type: ignore[call-arg]

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Every document in a fixed order."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest that changes whenever the content does."""

    def count(self) -> int | None:
        """The number of documents where that is known without reading them."""
        return None


class Collection(Corpus):
    """A corpus with queries and, in named splits, judgements of which documents answer them."""

    @abstractmethod
    def queries(self) -> Iterator[Query]:
        """Every query of every split in a fixed order."""

    @abstractmethod
    def splits(self) -> list[str]:
        """The names that `judgements` accepts."""

    @abstractmethod
    def judgements(self, split: str) -> dict[str, dict[str, int]]:
        """Relevance by query id and document id."""

    def answers(self, split: str) -> dict[str, list[str]]:
        """The strings that answer each query; none where the collection has no such strings."""
        return {}


def choose_split(parts: Mapping[str, T], split: str, where: str) -> T:
    """What belongs to a split, or a SettingsError naming the splits that there are."""
    if split not in parts:
        raise SettingsError(
            f"{where}: there is no split named {split!r}",
            "choose one of these",
            choices(split, parts),
        )
    return parts[split]
