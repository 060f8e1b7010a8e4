"""What cuts the documents of an index into passages: settings, and the encoder that reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from isthmus.config.models import full_name, model_folder, named_at
from isthmus.errors import MismatchError, SettingsError
from isthmus.indexes.manifest import EncoderOrigin, Manifest
from isthmus.records import Document
from isthmus.retrieval.searcher import encoder_name
from isthmus.text.passages import SHORTEST, Chosen, Cut, Cutter, PassageSettings

if TYPE_CHECKING:
    from isthmus.encoders.encoder import TextModel
    from isthmus.text.tokenizer import Tokenizer


def chosen_cutter(chosen: Chosen, encoders: Sequence[TextModel]) -> Cutter | None:
    """The cutter that settings ask for; None where documents stay whole.

    Passages are as long as all of the encoders read in full, in tokens of the one that reads least;
    if that is too little for a passage, documents are cut off there.
    """
    if chosen is False:
        return None
    settings = PassageSettings() if chosen in (None, True) else cast(PassageSettings, chosen)
    if settings.model is not None:
        tokenizer = _tokenizer(settings.model)
        most = settings.length or _room_of(settings.model, tokenizer)
        return cutter_for(settings, tokenizer, most)
    rooms = [encoder.settings.room(encoder.tokenizer) for encoder in encoders]
    least = rooms.index(min(rooms))
    if chosen is None and rooms[least] < SHORTEST:
        return None
    return cutter_for(settings, encoders[least].tokenizer, rooms[least])


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
    manifest: Manifest, folder: Path, encoders: Sequence[TextModel], model: str | None = None
) -> Cutter | None:
    """The cutter that made the passages of an index; None for one of whole documents.

    Where none of the encoders has its tokenizer, that is loaded, from there or from `model`.
    """
    cut = manifest.passages
    if cut is None or cut.tokenizer is None:
        return None if cut is None else Cutter(cut)
    for one in encoders:
        if one.tokenizer.fingerprint == cut.tokenizer:
            return Cutter(cut, one.tokenizer.starts)
    origins = list(manifest.encoders.values())
    names = [EncoderOrigin(name=cut.model, fingerprint="")] if cut.model is not None else origins
    for origin in names:
        tokenizer = _tokenizer(encoder_name(folder, origin, None if cut.model else model))
        if tokenizer.fingerprint == cut.tokenizer:
            return Cutter(cut, tokenizer.starts)
    raise MismatchError(
        f"the tokenizer that counts the passages of the index {str(folder)!r} has changed"
        + (f": it was that of {cut.model}" if cut.model else ""),
        "build the index again",
    )


def rows(cutter: Cutter | None, documents: Iterable[Document]) -> Iterable[Document]:
    """What becomes rows of an index: the documents, or their passages."""
    return documents if cutter is None else cutter.passages(documents)


def _tokenizer(model: str) -> Tokenizer:
    from isthmus.text.tokenizer import Tokenizer

    with named_at("passages.model"):
        return Tokenizer.load(model_folder(model))


def _room_of(model: str, tokenizer: Tokenizer) -> int:
    from isthmus.encoders.model_settings import stored_settings

    return stored_settings(model).settings.room(tokenizer)
