"""Files of JSON objects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isthmus.collections.collection import Corpus
from isthmus.collections.document_checks import screened
from isthmus.collections.fields import (
    DOCUMENT_ID,
    DOCUMENT_TEXT,
    DOCUMENT_TITLE,
    has_any,
    identifier,
    json_lines,
    text,
)
from isthmus.collections.files import fingerprint, require_file
from isthmus.collections.formats import collection_format
from isthmus.collections.metadata import Others
from isthmus.collections.problems import Problems
from isthmus.records import Document


@collection_format("jsonl")
class Jsonl(Corpus):
    """One JSON object per line: an id, a text, perhaps a title; the rest is metadata."""

    def __init__(self, file: str | Path, problems: Problems | None = None) -> None:
        self.file = Path(file)
        self._problems = problems or Problems()
        require_file(self.file)

    def documents(self) -> Iterator[Document]:
        """Every document in the order of the file."""
        problems = self._problems.reading(str(self.file))
        return screened(_documents(self.file, problems), problems, str(self.file))

    def fingerprint(self) -> str:
        """A digest of the file's bytes."""
        return fingerprint([self.file])


def _documents(file: Path, problems: Problems) -> Iterator[tuple[str, Document]]:
    others = Others(str(file), DOCUMENT_ID + DOCUMENT_TITLE + DOCUMENT_TEXT)
    for where, record in json_lines(file, problems):
        document_id = identifier(record, DOCUMENT_ID, where, problems)
        if document_id is None or not has_any(
            record, DOCUMENT_TEXT + DOCUMENT_TITLE, where, problems
        ):
            continue
        title = text(record, DOCUMENT_TITLE, where, problems)
        content = text(record, DOCUMENT_TEXT, where, problems)
        if title is not None and content is not None:
            yield where, Document(document_id, content, title, metadata=others.of(record))
    others.tell()
