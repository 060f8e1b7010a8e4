"""What tests of encoders share."""

from __future__ import annotations

import pytest
from torch import Tensor

from isthmus.nn.packing import Packing


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Packing]:
    """Every packing that is made from here on; who makes one must know where the tokens are."""
    made: list[Packing] = []
    own = Packing.of

    def of(mask: Tensor, tokens: Tensor | None = None) -> Packing:
        assert tokens is not None, "the device would be asked how many there are"
        made.append(own(mask, tokens))
        return made[-1]

    monkeypatch.setattr(Packing, "of", of)
    return made
