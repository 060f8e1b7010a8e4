"""A dense encoder that is ready at once, for searches that answer a query or two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.encoder import Encoder
from isthmus.encoders.modules import projecting
from isthmus.encoders.projection import load_projection
from isthmus.errors import IsthmusError
from isthmus.nn.light_backbone import LightBackbone
from isthmus.text.tokenizer import Tokenizer

_FEW = 64  # queries at once; more are worth the time that transformers takes to import


class QuickEncoder(DenseEncoder):
    """Encodes few queries without transformers, and many with the encoder that `whole` loads."""

    whole: Callable[[], Encoder]

    @cached_property
    def loaded(self) -> DenseEncoder:
        """What `whole` loads, once: also what reads documents, and has the model's head."""
        encoder = self.whole()
        assert isinstance(encoder, DenseEncoder)
        return encoder

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """One vector per query; `with_tokens`, Both."""
        if len(texts) > _FEW:
            loaded = self.loaded.with_tokens() if self.gives_tokens else self.loaded
            return loaded.encode_queries(texts)
        return super().encode_queries(texts)


def quick_encoder(
    name: str, folder: str, settings: DenseSettings, fingerprint: str
) -> QuickEncoder | None:
    """The encoder of this fingerprint, in float32; None where it takes transformers to load it.

    Whatever is wrong with its files, loading it with transformers says so.
    """
    try:
        backbone = LightBackbone.read(folder)
        tokenizer = None if backbone is None else Tokenizer.read(folder)
        if backbone is None or tokenizer is None:
            return None
        projection = load_projection(folder, projecting(folder), backbone.dimension)
        encoder = QuickEncoder(backbone, tokenizer, settings, name, projection)
        encoder.encode_queries([name])  # some damage shows only when a text is read
        return encoder if encoder.fingerprint == fingerprint else None
    except (IsthmusError, OSError, LookupError, TypeError, ValueError, RuntimeError):
        return None
