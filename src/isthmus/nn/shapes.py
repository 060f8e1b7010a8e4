"""The shapes of encoders from nothing, by size: those of the published BERT miniatures."""

from __future__ import annotations

import re

from isthmus.errors import SettingsError, choices

# Turc et al. 2019, "Well-Read Students Learn Better": layers, width.
SIZES = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "base": (12, 768)}
_SHAPE = re.compile(r"([1-9][0-9]?)x([1-9][0-9]{1,3})")
_HEAD = 64  # the width of an attention head, of which that of a model is a multiple


def shape_of(size: str, where: str = "model") -> tuple[int, int]:
    """The layers and the width of a size: a name, or LAYERSxWIDTH."""
    if size in SIZES:
        return SIZES[size]
    found = _SHAPE.fullmatch(size)
    if found is None or int(found[2]) % _HEAD:
        raise SettingsError(
            f"{where}: there is no size {size!r}",
            f"choose one of these, or LAYERSxWIDTH with a width in steps of {_HEAD} (6x384)",
            choices(size, SIZES),
        )
    return int(found[1]), int(found[2])
