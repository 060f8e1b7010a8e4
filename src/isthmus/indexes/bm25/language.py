"""The language that BM25 reads some documents in: the one that was named, or that they show."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from isthmus.indexes.bm25.stop_words import likely
from isthmus.indexes.languages import AUTO, LANGUAGES, detected
from isthmus.indexes.manifest import Bm25Settings
from isthmus.progress import notice
from isthmus.records import Document

_SAMPLE = 100  # documents that are looked at


def in_language(settings: Bm25Settings, documents: Iterable[Document], corpus: str) -> Bm25Settings:
    """The settings for the language of documents, with a notice where it seems not English."""
    if settings.language != AUTO:
        return settings.resolved(settings.language)
    texts = [document.text for document in islice(documents, _SAMPLE)]
    if (found := detected(texts)) != "english":
        parts = "words" if settings.segmenter == "words" else "pairs of characters"
        notice(f"{corpus}: read as {found}, in {parts} (--language names another)")
    elif settings.accents is None and any(detected([text]) != "english" for text in texts):
        notice(f"{corpus}: read as English, and in pairs of characters where no spaces are")
        settings = settings.model_copy(update={"accents": "fold"})  # the analysis of any script
    elif (language := likely(texts)) != "english" and language in LANGUAGES:
        notice(f"{corpus} looks {language.title()}: --language {language} stems its words")
    return settings.resolved(found)


def guessed(text: str) -> str | None:
    """The language of a text by its script or its stop words; None where neither tells."""
    found = detected([text])
    return found if found != "english" else likely([text])
