"""The language that BM25 reads some documents in: the one that was named, or that they show."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from isthmus.indexes.bm25.stop_words import likely
from isthmus.indexes.languages import AUTO, LANGUAGES, detected
from isthmus.indexes.manifest import Bm25Settings
from isthmus.progress import notice
from isthmus.records import Document

ENGLISH = "english"
_SAMPLE = 100  # documents that are looked at


def in_language(
    settings: Bm25Settings,
    documents: Iterable[Document],
    corpus: str,
    known: Bm25Settings | None = None,
) -> Bm25Settings:
    """The settings for the language of documents: named, `known` of their index, or by script.

    A notice says which language the script tells, or stop words might.
    """
    if settings.language != AUTO:
        return settings.resolved(settings.language)
    if known is not None:
        named = ((name, getattr(settings, name)) for name in ("stemmer", "stopwords", "accents"))
        chosen = {name: value or getattr(known, name) for name, value in named}
        return settings.model_copy(update=chosen).resolved(known.language)
    texts = [document.text for document in islice(documents, _SAMPLE)]
    if (found := detected(texts)) != ENGLISH:
        notice(f"{corpus}: read as {found}, in pairs of characters (--language names another)")
    elif settings.accents is None and any(detected([text]) != ENGLISH for text in texts):
        notice(f"{corpus}: read as English, and in pairs of characters where no spaces are")
        settings = settings.model_copy(update={"accents": "fold"})  # the analysis of any script
    elif (guess := likely(texts)) in LANGUAGES and guess != ENGLISH:
        notice(f"{corpus} looks {guess.title()}: --language {guess} stems its words")
    return settings.resolved(found)


def guessed(text: str) -> str | None:
    """The language of a text by its script or its stop words; None where neither tells."""
    found = detected([text])
    return found if found != "english" else likely([text])
