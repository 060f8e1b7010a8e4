"""Documents that a program holds: written once to the cache, and read from there as a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import xxhash

from isthmus.collections.collection import Corpus
from isthmus.collections.fields import DOCUMENT_ID, DOCUMENT_TEXT, DOCUMENT_TITLE
from isthmus.collections.metadata import Others
from isthmus.config.cache import cache_folder
from isthmus.config.output import whole_file
from isthmus.errors import InputError, shown
from isthmus.progress import notice
from isthmus.records import Document

Documents = str | Path | Corpus | Iterable["str | Mapping[str, Any] | Document"]
"""A path or name of documents, or documents themselves: texts, mappings or `Document`s.

Keys of a mapping other than id, title and text are its metadata.
"""

_IN_MEMORY = "documents in memory"
_KNOWN = (*DOCUMENT_ID, *DOCUMENT_TEXT, *DOCUMENT_TITLE)


def documents_spec(documents: Documents, numbered: bool = True) -> str:
    """What the documents are called where a path is taken; those in memory are a file by then.

    A text alone has its position as its id, which is refused where `numbered` is false.
    """
    if isinstance(documents, str | Path):
        return str(documents)
    if isinstance(documents, Corpus):
        if documents.spec is not None:
            return documents.spec
        documents = documents.documents()
    if isinstance(documents, Mapping):  # texts, or all else, by id
        documents = [
            {**(one if isinstance(one, Mapping) else {"text": one}), "id": str(name)}
            for name, one in documents.items()
        ]
    elif hasattr(documents, "columns"):
        raise InputError(
            f"documents of type {type(documents).__name__} cannot be read",
            "give its rows: documents.to_dict('records')",
        )
    if not isinstance(documents, Iterable):
        raise InputError(
            f"documents = {shown(documents)} of type {type(documents).__name__} cannot be read",
            "give a path, or a list of texts, of mappings with id and text, or of Document",
        )
    others = Others(_IN_MEMORY, _KNOWN)
    lines = [_line(one, number, numbered, others) for number, one in enumerate(documents)]
    others.tell()
    content = "".join(lines)
    file = _place() / f"{xxhash.xxh3_128_hexdigest(content.encode())}.jsonl"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as stream:
            stream.write(content)
    return str(file)


def called(spec: str) -> str:
    """What messages call documents: their path or name, or that they were in memory."""
    return _IN_MEMORY if Path(spec).parent == _place() else spec


def _place() -> Path:
    return cache_folder() / "documents"


def _line(one: object, number: int, numbered: bool, others: Others) -> str:
    """One document as a line of JSON."""
    found: dict[str, Any]
    metadata: Mapping[str, Any] = {}
    if isinstance(one, Document):
        found = {"id": one.id, "title": one.title, "text": one.text}
        metadata = others.of({"metadata": one.metadata})
    elif isinstance(one, str) and numbered:
        found = {"id": str(number), "text": one}
    elif isinstance(one, Mapping) and all(isinstance(key, str) for key in one):
        found = {key: value for key, value in one.items() if key in _KNOWN}
        metadata = others.of(one)
        if not any(key in one for key in (*DOCUMENT_TEXT, *DOCUMENT_TITLE)):
            raise InputError(
                f"documents[{number}] has no text: its keys are {', '.join(one)}",
                "name it text, contents or body",
            )
        if numbered and not any(key in one for key in DOCUMENT_ID):
            if number == 0:
                notice(f"documents have no id among {', '.join(one)}: their positions are ids")
            found["id"] = str(number)
    else:
        raise InputError(
            f"documents[{number}] = {shown(one)} cannot be read as a document",
            "give it an id: {'id': …, 'text': …}, or Document(id, text)"
            if isinstance(one, str)
            else "give a text, a mapping with id and text, or Document(id, text)",
        )
    if metadata:
        found["metadata"] = metadata
    try:
        return json.dumps(found, ensure_ascii=False) + "\n"
    except TypeError:
        raise InputError(
            f"documents[{number}] = {shown(one)} holds something else than texts and numbers",
            "give id, text and title as strings",
        ) from None
