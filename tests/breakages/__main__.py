"""Breaks a copy of the code in one plausible way after another, and sees whether its tests notice.

    python -m tests.breakages               # all of them, a quarter of an hour on 2 cores
    python -m tests.breakages lexicon flops # those whose description or file says one of these

Exits with 1 where a breakage survives, or could not be tried.
"""

from __future__ import annotations

import os
import shutil
import sys
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


def main(words: list[str]) -> int:
    """0 if the tests noticed all the chosen breakages, else 1."""
    every: list[dict[str, Any]] = yaml.safe_load(BREAKAGES.read_text(encoding="utf-8"))
    chosen = [
        breakage
        for breakage in every
        if not words or any(word in breakage["breaks"] + breakage["file"] for word in words)
    ]
    torch.set_num_threads(1)  # OpenMP's threads are lost in a fork, which would wait for them
    copy = Path(mkdtemp(prefix="isthmus-breakages-"), "isthmus")
    for part in ("src", "tests", "docs", "experiments"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    # What fails unbroken would catch everything.
    code, output = run(copy, sorted({test for one in chosen for test in one["tests"]}))
    if code != 0:
        print(f"These tests must pass before anything is broken:\n{output}")
        return 1
    survivors = len(chosen) - sum(caught(copy, breakage) for breakage in chosen)
    shutil.rmtree(copy.parent)
    print(f"{len(chosen) - survivors} of {len(chosen)} breakages were caught")
    return int(survivors > 0)


def caught(copy: Path, breakage: dict[str, Any]) -> bool:
    """Whether the tests notice; prints it, with the test that did."""
    file = copy / breakage["file"]
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(breakage["old"], breakage["new"]), encoding="utf-8")
    code, output = run(copy, breakage["tests"])
    file.write_text(text, encoding="utf-8")
    failed = [line.split(" - ")[0] for line in output.splitlines() if line.startswith("FAILED")]
    # Any other code: the tests did not run, which a broken import would bring about as well.
    outcome = {0: "SURVIVED", 1: "caught"}.get(code, "NOT RUN")
    print(
        f"{outcome:9} {breakage['breaks']}\n{'':10}{' '.join(failed) or output[-500:]}", flush=True
    )
    return outcome == "caught"


def run(copy: Path, tests: list[str]) -> tuple[int, str]:
    """pytest's exit code and output for tests run against the copy.

    In a fork of this process, which has imported what takes long and is not ours.
    """
    log = copy.parent / "log"
    child = os.fork()
    if child == 0:
        with log.open("wb") as stream:
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
    return os.waitstatus_to_exitcode(status), log.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
