"""The text itself, cropped once; encoder and decoder see the same crop."""

from __future__ import annotations

from typing import Literal

import torch

from isthmus.config import Settings
from isthmus.nn.randomness import draw
from isthmus.pretraining.parts import Text, View
from isthmus.pretraining.registries import view
from isthmus.text.corpus import TokenisedDocument

CROP_STREAM = 1


class SameSettings(Settings):
    """Where a long text is cut."""

    crop: Literal["head", "random"] = "head"


@view("same")
class Same(View):
    """The text itself, cropped once; encoder and decoder see the same crop.

    The beginning of a text, or a random window of it, drawn afresh every epoch.
    """

    Settings = SameSettings
    settings: SameSettings

    def __call__(self, document: TokenisedDocument, room: int, key: int) -> tuple[Text, ...]:
        """The crop; a text that fits is never cropped."""
        start = 0
        spare = len(document.tokens) - room
        if spare > 0 and self.settings.crop == "random":
            start = int(draw(torch.tensor([key]), CROP_STREAM, 1)) % (spare + 1)
        window = slice(start, start + room)
        return (Text(document.tokens[window], document.words[window], start),)
