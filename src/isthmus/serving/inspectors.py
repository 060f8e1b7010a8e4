"""What the vectors of a server's encoders name, each made ready when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from isthmus.inspection.inspected import Inspection
from isthmus.retrieval.searcher import Searcher
from isthmus.serving.retrievers import Offer, Retrievers

if TYPE_CHECKING:
    from isthmus.retrieval.searcher import Encoder


class Inspectors:
    """The inspectors of encoders that were asked for, by fingerprint."""

    def __init__(self) -> None:
        self._ready: dict[str, Callable[..., Inspection]] = {}

    def inspected(self, now: Retrievers, offers: Sequence[Offer], text: str) -> dict[str, Any]:
        """What the vectors of a text name, by the names of retrievers, as JSON has it."""
        served = {_encoder(offer).fingerprint for offer in now.encoders.values()}
        self._ready = {one: ready for one, ready in self._ready.items() if one in served}
        models = []
        for offer in offers:
            ((found,),) = (one.models for one in self._inspector(offer)(text).texts)
            note = found.note and found.note.replace(found.model, offer.name)
            models.append({**asdict(found), "model": offer.name, "note": note})
        return {"texts": [{"text": text, "models": models}], "coverage": None}

    def _inspector(self, offer: Offer) -> Callable[..., Inspection]:
        encoder = _encoder(offer)
        if encoder.fingerprint not in self._ready:
            from isthmus.encoders import DenseEncoder, SparseEncoder
            from isthmus.encoders.light_dense import QuickEncoder
            from isthmus.inspection.inspect import open_inspect

            model: Any = encoder.loaded if isinstance(encoder, QuickEncoder) else encoder
            if not isinstance(model, DenseEncoder | SparseEncoder):  # a query's side alone
                model = encoder.name
            # Where a model has no head, the index has vectors and texts to fit one to.
            self._ready[encoder.fingerprint] = open_inspect(
                model, corpus=cast(Searcher, offer.plain)
            )
        return self._ready[encoder.fingerprint]


def _encoder(offer: Offer) -> Encoder:
    encoder = cast(Searcher, offer.plain).encoder
    assert encoder is not None
    return encoder
