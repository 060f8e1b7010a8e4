"""How much of the texts of a corpus or an index an encoder reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.config.models import model_folder
from isthmus.indexes.documents import blocks
from isthmus.indexes.segments.index import open_index
from isthmus.progress import track
from isthmus.records import Document
from isthmus.retrieval.searcher import encoder_name
from isthmus.text.truncation import CutTexts

if TYPE_CHECKING:
    from isthmus.encoders.encoder import EncoderSettings

_AT_ONCE = 256  # texts


def read_by(model: str, documents: Iterable[Document], source: str) -> CutTexts:
    """The count of documents that are longer than an encoder reads."""
    from isthmus.encoders.model_settings import stored_settings

    return _count(model, stored_settings(model).settings, documents, source)


def _count(
    model: str, settings: EncoderSettings, documents: Iterable[Document], source: str
) -> CutTexts:
    from isthmus.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(model_folder(model))
    found = CutTexts(settings.room(tokenizer))
    for block in blocks(track(documents, f"tokenise {source}"), _AT_ONCE):
        texts = [document.contents(settings.titles) for document in block]
        found.count(len(encoding) for encoding in tokenizer.split(texts))
    return found


def read_in_index(folder: Path) -> CutTexts | None:
    """The count for what an index was filled with; None without an encoder, or without texts."""
    index = open_index(folder)
    if (origin := index.manifest.encoder) is None or not index.manifest.texts:
        return None

    from isthmus.encoders.loader import indexed_settings

    name = encoder_name(folder, origin)
    documents = (index.store.document(row) for row in range(len(index.store)))
    return _count(name, indexed_settings(name, origin.settings), documents, str(folder))
