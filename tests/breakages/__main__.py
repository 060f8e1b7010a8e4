"""Breaks a copy of the code in one plausible way after another, and sees whether its tests notice.

    python -m tests.breakages               # all of them, about an hour on 2 cores
    python -m tests.breakages lexicon flops # those whose description or file says one of these
    python -m tests.breakages --draw 3      # so many of them, others every day

Exits with 1 where a breakage survives, or could not be tried; not where its tests are skipped here.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import hypothesis  # noqa: F401 (this and the next two: imported once, for every fork)
import pytest
import scipy.stats  # noqa: F401
import torch
import transformers.models.bert.modeling_bert  # noqa: F401
import yaml

ROOT = Path(__file__).resolve().parents[2]
BREAKAGES = Path(__file__).with_name("breakages.yaml")
_PASSED = (0, 5)  # pytest's codes; 5: all tests are skipped, with their files


def main(words: list[str], draw: int | None = None) -> int:
    """0 if the tests noticed all the chosen breakages, or so many drawn from them, else 1."""
    every: list[dict[str, Any]] = yaml.safe_load(BREAKAGES.read_text(encoding="utf-8"))
    chosen = [
        breakage
        for breakage in every
        if not words or any(word in breakage["breaks"] + breakage["file"] for word in words)
    ]
    if draw is not None:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        chosen = random.Random(today).sample(chosen, min(draw, len(chosen)))
    if not chosen:
        print(f"No breakage of {len(every)} says {' or '.join(words)}")
        return 1
    torch.set_num_threads(1)  # OpenMP's threads are lost in a fork, which would wait for them
    with folder() as place:
        copy = place / "isthmus"
        for part in ("src", "tests", "docs", "experiments"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        # What fails unbroken would catch everything.
        whole, told = run(copy, sorted({test for one in chosen for test in one["tests"]}))
        if whole not in _PASSED:
            print(f"These tests must pass before anything is broken:\n{told}")
            return 1
        outcomes = [attempt(copy, breakage) for breakage in chosen]
    print(f"{outcomes.count('caught')} of {len(outcomes)} breakages were caught")
    return int(not {"caught", "SKIPPED"}.issuperset(outcomes))


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder, removed at the end by this process alone: forks of it end in many ways."""
    place, owner = Path(mkdtemp(prefix="isthmus-breakages-")), os.getpid()
    try:
        yield place
    finally:
        if os.getpid() == owner:
            shutil.rmtree(place)


def attempt(copy: Path, breakage: dict[str, Any]) -> str:
    """Whether the tests noticed, in a word; says so, with the test that did."""
    file = copy / breakage["file"]
    text = file.read_text(encoding="utf-8")
    started = time.monotonic()
    if text.count(breakage["old"]) != 1:
        outcome, detail = "NOT FOUND", f"{breakage['old']!r} in {breakage['file']}"
    else:
        file.write_text(text.replace(breakage["old"], breakage["new"]), encoding="utf-8")
        code, told = run(copy, breakage["tests"])
        file.write_text(text, encoding="utf-8")
        failed = [line for line in told.splitlines() if line.startswith("FAILED")]
        # Any other code: the tests did not run, which a broken import would bring about as well.
        outcome = {0: "SURVIVED", 1: "caught"}.get(code, "NOT RUN")
        if code in _PASSED and " skipped" in told and " passed" not in told:
            outcome = "SKIPPED"  # a browser, say, is missing here
        detail = failed[0].split(" - ")[0] if failed else "\n".join(told.splitlines()[-5:])
    seconds = time.monotonic() - started
    print(f"{outcome:9} {seconds:5.1f} s  {breakage['breaks']}\n{'':19}{detail}", flush=True)
    return outcome


def run(copy: Path, tests: list[str]) -> tuple[int, str]:
    """pytest's exit code and output for tests run against the copy.

    In a fork of this process, which has imported what takes long and is not ours.
    """
    said = copy.parent / "said"
    child = os.fork()
    if child == 0:
        with said.open("wb") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        os.chdir(copy)
        data = str(ROOT.parent / "shared" / "data")
        os.environ.update(PYTHONPATH=str(copy / "src"), PYTHONDONTWRITEBYTECODE="1")
        os.environ.setdefault("ISTHMUS_DATA", data)
        sys.path[:0] = [str(copy), str(copy / "src")]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]  # the copy's are imported
        sys.dont_write_bytecode = True
        code = pytest.main(["-x", "-q", "-m", "", "-p", "no:cacheprovider", *tests])
        sys.stdout.flush()
        os._exit(int(code))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said.read_text(encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.breakages")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--draw", type=int)
    given = parser.parse_args()
    sys.exit(main(given.words, given.draw))
