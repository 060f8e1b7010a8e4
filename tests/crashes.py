"""Builds that end at a chosen step, as at a crash, and are run again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.indexes import construction
from isthmus.indexes.documents import DocumentWriter
from isthmus.indexes.manifest import workplace

# The number of documents that need not be done again.
Build = Callable[[Path], int]
# What leaves a trace on the disk: the owner of a function, and its name.
Steps = Iterable[tuple[Any, str]]
_STEPS: list[tuple[Any, str]] = [
    (os, "fsync"), (Path, "replace"), (Path, "rename"), (Path, "mkdir"), (np, "save"),
    (shutil, "rmtree"), (DocumentWriter, "add"), (construction, "write_manifest"),
]  # fmt: skip


class Crash(BaseException):
    """Stands for the end of the process: nothing catches it, nothing cleans up after it."""


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file of a folder, by name."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def crash_at_every_step(build: Build, place: Path, steps: Steps) -> tuple[int, set[int]]:
    """Ends a build before and after each step; the same build again must give the same index.

    Returns the number of steps, and the numbers of documents that a second build found done.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isthmus.config.output.environment", dict)  # quicker
        with pytest.MonkeyPatch.context() as watching:
            count = _instrument(watching, steps, fail_at=-1, after=False)
            build(place / "whole")
            total = count()
        expected = contents(place / "whole")
        resumed = set()
        for step in range(1, total + 1):
            for after in (False, True):
                folder = place / f"{step}{after}"
                with pytest.MonkeyPatch.context() as watching:
                    _instrument(watching, steps, step, after)
                    with pytest.raises(Crash):
                        build(folder)
                resumed.add(build(folder))
                assert contents(folder) == expected, f"step {step}, {after=}"
                assert not workplace(folder).exists()
    return total, resumed


def _crash() -> None:
    raise Crash


def _instrument(
    patch: pytest.MonkeyPatch,
    steps: Steps,
    fail_at: int,
    after: bool,
    end: Callable[[], None] = _crash,
) -> Callable[[], int]:
    """Counts every step and ends the process at one of them."""
    done = 0

    def watched(function: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **options: object) -> object:
            nonlocal done
            done += 1
            mine = done  # a step may contain others
            if mine == fail_at and not after:
                end()
            try:
                return function(*arguments, **options)
            finally:
                if mine == fail_at and after:
                    end()

        return step

    for owner, name in (*_STEPS, *steps):
        patch.setattr(owner, name, watched(getattr(owner, name)))
    return lambda: done
