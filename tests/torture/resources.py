"""Every job with a disk that is full, read-only or broken from each of its steps on; with files
that may not grow, a small disk, and little memory.

Each time the project's error, or the job done; what was there before is still there, and the
same command again, with nothing in its way, ends as if nothing had happened.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tests.torture.children import Harm
from tests.torture.kills import unchanged
from tests.torture.scene import JOBS, Case, Outcome, Scene, drawn, same

_ERRORS = ("EROFS", "EACCES", "ENOSPC", "EIO")
_FILE_SIZES = (0, 100, 1_000, 5_000, 20_000, 100_000, 500_000)
_DISKS = (8, 20, 40, 80, 160, 400, 1_500, 4_000)  # KiB
_MEMORY = (0, 1, 4, 16, 64, 128)  # MiB beside what everything imported takes


def cases(scene: Scene, short: bool) -> Iterable[Case]:
    """A case per job, error and step; and per job and limit."""
    names = ("add dense", "delete fields", "index bm25") if short else JOBS
    return drawn(_every(scene, names), 8 if short else None)


def _every(scene: Scene, names: Any) -> Iterator[Case]:
    for name in names:
        steps = scene.reference(name).ended.steps
        for step in range(1, steps + 1):  # full from there on; every third, another error once
            once = [(_ERRORS[step // 3 % len(_ERRORS)], False)] if step % 3 == 0 else []
            for error, later in [("ENOSPC", True), *once]:
                told = f"{name}@{step}-{error}{'-on' if later else ''}"
                yield Case(told, partial(_harmed, scene, name, harm=Harm(error, step, later)))
        for size in _FILE_SIZES:
            limits = {resource.RLIMIT_FSIZE: size}
            yield Case(f"{name}@files-{size}", partial(_harmed, scene, name, limits=limits))
        for mebibytes in _MEMORY:
            limits = {resource.RLIMIT_AS: mebibytes * 2**20}
            yield Case(f"{name}@memory-{mebibytes}", partial(_harmed, scene, name, limits=limits))
        for size in _DISKS:
            yield Case(f"{name}@disk-{size}", partial(_harmed, scene, name, disk=size))


def _harmed(scene: Scene, name: str, disk: int | None = None, **harm: Any) -> Outcome:
    job, reference = JOBS[name], scene.reference(name)
    scene.clear(job)
    with _small_disk(scene, disk) as mounted:
        if not mounted:
            return Outcome(Counter({"without a small disk": 1}))
        ended = scene.start(job, **harm).end(300)
        state = scene.state()
    whole = (reference.after, *reference.between)
    kept = unchanged(state, reference.before) or any(same(state, one) for one in whole)
    outcome = Outcome(Counter(tried=1, refused=int(ended.refused), done=int(ended.code == 0)))
    little = resource.RLIMIT_AS in harm.get("limits", {})  # in whose words is not promised
    if ended.code and not ended.refused and not little:
        outcome.findings.append(f"not the project's error: {ended.tail}")
    if ended.code == 0 and not same(state, reference.after):
        outcome.findings.append(f"says done, but there is {str(state)[:200]}")
    elif not kept:
        outcome.findings.append(f"what was there is not: {str(state)[:200]}")
    if disk is not None:
        scene.clear(job)  # it went with the disk
    again = scene.start(job).end(300)
    if again.code:
        outcome.findings.append(f"the same command again fails: {again.tail}")
    elif not same(found := scene.state(), reference.after):
        outcome.findings.append(f"the same command again makes something else: {str(found)[:200]}")
    return outcome


@contextmanager
def _small_disk(scene: Scene, kibibytes: int | None) -> Iterator[bool]:
    """The place on a disk of so many KiB beside what lies there; False where none is allowed."""
    if kibibytes is None:
        yield True
        return
    # A disk in memory gives out pages of 4 KiB.
    used = sum(4 * (2 + file.stat().st_size // 4096) for file in scene.place.rglob("*")) + 8
    kept = scene.folder / "kept"
    shutil.move(scene.place, kept)
    scene.place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={used + kibibytes}k", "tmpfs", str(scene.place)]
    allowed = shutil.which("mount") and not subprocess.run(mount, capture_output=True).returncode
    try:
        if allowed:
            shutil.copytree(kept, scene.place, dirs_exist_ok=True)
        yield bool(allowed)
    finally:
        shutil.rmtree(kept)
        if allowed:
            subprocess.run(["umount", "-l", str(scene.place)], check=True)
