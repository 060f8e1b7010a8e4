"""What requests and answers hold, as /openapi.json describes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from isthmus.errors import lone_surrogate
from isthmus.serving.settings import Limits


def _whole(text: str) -> str:
    """The text, which JSON can write halves of characters into."""
    if lone_surrogate(text):
        raise ValueError("half of a surrogate pair is no character")
    return text


Text = Annotated[str, AfterValidator(_whole)]
"""A string of a request's body."""
DocumentId = Annotated[Text, Field(min_length=1, max_length=512)]
Grade = Annotated[int, Field(ge=0, le=3)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Health(BaseModel):
    """Whether the server answers."""

    status: Literal["ok"] = "ok"
    version: str


class RetrieverAbout(BaseModel):
    """A retriever that can be asked for by name."""

    name: str
    type: Literal["bm25", "dense", "sparse", "hybrid", "reranked"]
    model: str | None


class About(BaseModel):
    """What is served."""

    title: str
    documents: int
    retrievers: list[RetrieverAbout]
    default: str
    read_write: bool
    judging: bool
    limits: Limits


class SnippetPart(BaseModel):
    """A part of a snippet; a match is of words of the query."""

    text: str
    match: bool


class FoundDocument(BaseModel):
    """A hit; of a document in passages, its best one, with heading and place.

    The text is at most 20,000 characters of it; /api/document has more.
    """

    id: str
    rank: int
    score: float
    title: str
    snippet: list[SnippetPart]
    heading: str | None
    place: str | None
    text: str


class SearchAnswer(BaseModel):
    """Hits, best first; a note says why there are none."""

    query: str
    retriever: str
    milliseconds: dict[str, float]
    hits: list[FoundDocument]
    note: str | None


class DocumentAnswer(BaseModel):
    """A document; of a very long one the beginning, of as many characters in all."""

    id: str
    title: str
    text: str
    characters: int


class JudgementBody(_Body):
    """How relevant a document is for a query, 0 to 3; null takes the judgement back."""

    query: Text = Field(min_length=1)
    id: DocumentId
    grade: Grade | None


class JudgementsAnswer(BaseModel):
    """The grades of documents for a query, by their ids."""

    grades: dict[str, int]


class NewDocument(_Body):
    """A document to add."""

    id: DocumentId
    title: Text = ""
    text: Text = ""


class DocumentsBody(_Body):
    """Documents to add; those of the same ids are replaced."""

    documents: list[NewDocument] = Field(min_length=1)


class UpdateAnswer(BaseModel):
    """What a change, now on the disk, came to: documents new, replaced, deleted, and in all."""

    added: int
    replaced: int
    deleted: int
    documents: int
