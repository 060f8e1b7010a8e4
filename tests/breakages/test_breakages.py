"""The list of breakages fits the code that it breaks, so that it can be tried at any time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BREAKAGES = yaml.safe_load(Path(__file__).with_name("breakages.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage["breaks"])
def test_what_is_broken_is_there_once(breakage: dict[str, Any]) -> None:
    assert set(breakage) == {"breaks", "file", "old", "new", "tests"}
    text = (ROOT / breakage["file"]).read_text(encoding="utf-8")
    assert text.count(breakage["old"]) == 1, "say anew what to replace in tests/breakages"
    broken = text.replace(breakage["old"], breakage["new"])
    assert broken != text
    if breakage["file"].endswith(".py"):
        compile(broken, breakage["file"], "exec")
    elif breakage["file"].endswith(".yaml"):
        yaml.safe_load(broken)
    assert breakage["tests"]
    assert all((ROOT / test).is_file() for test in breakage["tests"])


def test_every_breakage_is_another() -> None:
    for key in ("breaks", "old"):
        found = [(breakage["file"], breakage[key]) for breakage in BREAKAGES]
        assert len(set(found)) == len(found)
