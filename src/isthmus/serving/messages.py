"""What requests and answers hold, as /openapi.json describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from isthmus.errors import lone_surrogate
from isthmus.indexes.columns import LONG, NUMBER, TEXT, type_of
from isthmus.serving.settings import Limits

Type = Literal["bm25", "dense", "sparse", "tokens", "fused", "reranked"]
Show = Literal["ids", "snippets", "texts"]
"""How much of a hit is sent: its id and score, also title and snippet, also the text."""


def _whole(text: str) -> str:
    """The text, which JSON can write halves of characters into."""
    if lone_surrogate(text):
        raise ValueError("half of a surrogate pair is no character")
    return text


def _value(value: Any) -> Any:
    """The value of a field, which filters can compare and JSON can say."""
    several = value if isinstance(value, list) else [value]
    types = {type_of(one) for one in several}
    if types <= {TEXT, LONG}:
        return list(map(_whole, several)) if several is value else _whole(value)
    if types <= {NUMBER} or value is None or isinstance(value, bool):
        return value
    raise ValueError("should be a text, a number, true or false, or a list of texts or numbers")


def _named(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that have a value; their names are texts."""
    return {_whole(name): value for name, value in fields.items() if value is not None}


Text = Annotated[str, AfterValidator(_whole)]
"""A string of a request's body."""
_ONE: list[dict[str, Any]] = [{"type": "string"}, {"type": "number"}]
_VALUES = [*_ONE, {"type": "boolean"}, *({"type": "array", "items": one} for one in _ONE)]
Value = Annotated[
    Any, AfterValidator(_value), WithJsonSchema({"anyOf": [*_VALUES, {"type": "null"}]})
]
Metadata = Annotated[dict[str, Value], AfterValidator(_named)]
"""What else a document has, by name."""
DocumentId = Annotated[Text, Field(min_length=1, max_length=512)]
Grade = Annotated[int, Field(ge=0, le=3)]


class Body(BaseModel):
    """The body of a request, of no other parts."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Health(BaseModel):
    """Whether the server answers."""

    status: Literal["ok"] = "ok"
    version: str


class RetrieverAbout(BaseModel):
    """A retriever that can be asked for by name."""

    name: str
    type: Type
    model: str | None


class About(BaseModel):
    """What is served."""

    title: str
    documents: int
    retrievers: list[RetrieverAbout]
    default: str
    metadata: dict[str, str] = Field(
        description="Types of what documents have besides, by name: text, number and boolean can "
        "be filtered by."
    )
    read_write: bool
    judging: bool
    limits: Limits


class SnippetPart(BaseModel):
    """A part of a snippet; a match is of words that answer the query."""

    text: str
    match: bool


class FoundDocument(BaseModel):
    """A hit; of a document in passages, its best one, with heading and place unless it begins it.

    The text is at most 20,000 characters of it, metadata what fits into 4,000; /api/document has
    more.
    """

    id: str
    rank: int
    score: float
    title: str
    snippet: list[SnippetPart]
    heading: str | None
    place: str | None
    text: str
    metadata: dict[str, Any]


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
    metadata: dict[str, Any]


class JudgementBody(Body):
    """How relevant a document is for a query, 0 to 3; null takes the judgement back."""

    query: Text = Field(min_length=1)
    id: DocumentId
    grade: Grade | None


class JudgementsAnswer(BaseModel):
    """The grades of documents for a query, by their ids."""

    grades: dict[str, int]


class NewDocument(BaseModel):
    """A document to add; whatever else it has, here or in `metadata`, can be filtered by."""

    model_config = ConfigDict(extra="allow", strict=True)

    id: DocumentId
    title: Text = ""
    text: Text = ""
    metadata: Metadata = {}
    __pydantic_extra__: dict[str, Value]

    @property
    def fields(self) -> dict[str, Any]:
        """Whatever else it has."""
        return self.metadata | _named(self.__pydantic_extra__)


class DocumentsBody(Body):
    """Documents to add; those of the same ids are replaced."""

    documents: list[NewDocument] = Field(min_length=1)


class UpdateAnswer(BaseModel):
    """What a change, now on the disk, came to: documents new, replaced, deleted, and in all."""

    added: int
    replaced: int
    deleted: int
    documents: int
