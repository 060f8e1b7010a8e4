"""What cuts the documents of an index into passages: settings, and the encoder that reads them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.collections import Corpus
from isthmus.config.models import full_name, model_folder, named_at
from isthmus.errors import MismatchError, SettingsError
from isthmus.indexes.manifest import EncoderOrigin, Manifest, stated_manifest
from isthmus.records import Document, Passage
from isthmus.retrieval.searcher import Unit, encoder_name
from isthmus.text.passages import WORDS, Chosen, Cut, Cutter, PassageSettings

if TYPE_CHECKING:
    from isthmus.encoders.encoder import TextModel
    from isthmus.text.tokenizer import Tokenizer


def chosen_cutter(chosen: Chosen, corpus: Corpus, encoder: TextModel | None) -> Cutter | None:
    """The cutter that settings ask for; None where documents stay whole."""
    if chosen is None:
        chosen = corpus.in_passages
    if chosen is False:
        return None
    settings = PassageSettings() if chosen is True else chosen
    if settings.model is not None:
        tokenizer = _tokenizer(settings.model)
        most = settings.length or _room_of(settings.model, tokenizer)
        return cutter_for(settings, tokenizer, most)
    if encoder is None:
        return Cutter(Cut(length=settings.length or WORDS, overlap=settings.overlap))
    return cutter_for(settings, encoder.tokenizer, encoder.settings.room(encoder.tokenizer))


def cutter_for(settings: PassageSettings, tokenizer: Tokenizer, most: int) -> Cutter:
    """A cutter into passages of at most so many tokens, as settings have it."""
    if settings.length is not None and settings.length > most:
        raise SettingsError(
            f"passages.length = {settings.length}, but the encoder reads {most} tokens",
            f"choose {most} or less, or leave passages.length out: passages are then as long as "
            "the encoder reads",
        )
    name = None if settings.model is None else full_name(settings.model)
    cut = Cut(
        length=settings.length or most,
        overlap=settings.overlap,
        tokenizer=tokenizer.fingerprint,
        model=name,
    )
    return Cutter(cut, tokenizer.starts)


def cutter_of(
    manifest: Manifest, folder: Path, encoder: TextModel | None, model: str | None = None
) -> Cutter | None:
    """The cutter that made the passages of an index; None for one of whole documents.

    Without its encoder, only the tokenizer is loaded, from there or from `model`.
    """
    cut = manifest.passages
    if cut is None or cut.tokenizer is None:
        return None if cut is None else Cutter(cut)
    tokenizer = None if encoder is None else encoder.tokenizer
    if cut.model is not None:
        origin = EncoderOrigin(name=cut.model, fingerprint=cut.tokenizer)
        tokenizer = _tokenizer(encoder_name(folder, origin))
    elif tokenizer is None and manifest.encoder is not None:
        tokenizer = _tokenizer(encoder_name(folder, manifest.encoder, model))
    if tokenizer is None or tokenizer.fingerprint != cut.tokenizer:
        raise MismatchError(
            f"the tokenizer that counts the passages of the index {str(folder)!r} has changed"
            + (f": it was that of {cut.model}" if cut.model else ""),
            "build the index again",
        )
    return Cutter(cut, tokenizer.starts)


def rows(cutter: Cutter | None, documents: Iterable[Document]) -> Iterable[Document]:
    """What becomes rows of an index: the documents, or their passages."""
    return documents if cutter is None else cutter.passages(documents)


def begun(some: Iterable[Document]) -> int:
    """How many documents have their first row among these."""
    return sum(not isinstance(one, Passage) or one.number == 1 for one in some)


def unit_of(folder: Path) -> Unit:
    """What the rows of an index are."""
    return "document" if stated_manifest(folder).passages is None else "passage"


def _tokenizer(model: str) -> Tokenizer:
    from isthmus.text.tokenizer import Tokenizer

    with named_at("passages.model"):
        return Tokenizer.load(model_folder(model))


def _room_of(model: str, tokenizer: Tokenizer) -> int:
    from isthmus.encoders.model_settings import stored_settings

    return stored_settings(model).settings.room(tokenizer)
