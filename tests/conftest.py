"""Fixtures that every kind of test shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real collections; tests that need it skip, saying so, where it is absent."""
    folder = Path(os.environ.get("ISTHMUS_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real collections not found at {folder} (set ISTHMUS_DATA)")
    return folder
