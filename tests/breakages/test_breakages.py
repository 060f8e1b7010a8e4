"""The list of breakages fits the code that it breaks, so that it can be tried at any time."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_broken_is_there_once() -> None:
    listed = (ROOT / "tests" / "breakages" / "breakages.yaml").read_text(encoding="utf-8")
    for breakage in yaml.safe_load(listed):
        text = (ROOT / breakage["file"]).read_text(encoding="utf-8")
        assert text.count(breakage["old"]) == 1, f"update the text to replace: {breakage['breaks']}"
        if breakage["file"].endswith(".py"):
            compile(text.replace(breakage["old"], breakage["new"]), breakage["file"], "exec")
        assert all((ROOT / test).is_file() for test in breakage["tests"]), breakage["breaks"]
