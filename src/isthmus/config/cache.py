"""Where isthmus keeps what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """ISTHMUS_CACHE, or `isthmus` in the user's cache folder."""
    if (stated := os.environ.get("ISTHMUS_CACHE")) is not None:
        return Path(stated)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "isthmus"
