"""The list of breakages fits the code that it breaks, so that it can be tried at any time."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
BREAKAGES = yaml.load(
    Path(__file__).with_name("breakages.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
)


def test_what_is_broken_is_there_once() -> None:
    for breakage in BREAKAGES:
        assert set(breakage) == {"breaks", "file", "old", "new", "tests"}
        name = breakage["breaks"]
        text = (ROOT / breakage["file"]).read_text(encoding="utf-8")
        assert text.count(breakage["old"]) == 1, f"say anew what to replace: {name}"
        broken = text.replace(breakage["old"], breakage["new"])
        assert broken != text, name
        if breakage["file"].endswith(".py"):
            compile(broken, breakage["file"], "exec")
        elif breakage["file"].endswith(".yaml"):
            yaml.safe_load(broken)
        assert breakage["tests"], name
        assert all((ROOT / test).is_file() for test in breakage["tests"]), name


def test_every_breakage_is_another() -> None:
    for key in ("breaks", "old"):
        found = [(breakage["file"], breakage[key]) for breakage in BREAKAGES]
        assert len(set(found)) == len(found)
