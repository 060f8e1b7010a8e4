"""Every file of every kind of index cut, removed, with bits flipped, or swapped with another one.

Each time the index gives the answers that it gave before, or the project's error; never others.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.torture.children import Child
from tests.torture.scene import CHANGING, INDEXES, Case, Job, Outcome, Scene, drawn, look, same

_FLIPS = 150  # of a file, spread over it


def cases(scene: Scene, short: bool) -> Iterable[Case]:
    """A case per file of each index; in each, many damages."""
    names = ["given grown", "fields"] if short else [
        *INDEXES, *(f"{kind} grown" for kind in CHANGING), "given grown",
    ]  # fmt: skip
    found = []
    for name in names:
        folder = scene.index(name)
        others = [scene.index(other) for other in names if other != name]
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            inner = str(file.relative_to(folder))
            run = partial(_damage, scene, name, inner, others, 12 if short else _FLIPS)
            found.append(Case(f"{name}/{inner}", run))
    return drawn(found, 8 if short else None)


def damages(
    content: bytes, flips: int, others: dict[str, bytes]
) -> Iterator[tuple[str, bytes | None]]:
    """What the file might come to hold, and how."""
    size = len(content)
    generator = random.Random(size)
    for cut in sorted({0, 1, 8, size // 2, size - 8, size - 1, generator.randrange(size + 1)}):
        if 0 <= cut < size:
            yield f"cut to {cut} bytes", content[:cut]
    yield "removed", None
    yield "with a byte more", content + b"\0"
    yield "all zero", bytes(size)
    places = set(range(min(size, flips // 4))) | {
        size * number // flips + generator.randrange(max(1, size // flips))
        for number in range(flips)
    }
    for place in sorted(place for place in places if place < size):
        bit = generator.randrange(8)
        flipped = bytes([content[place] ^ (1 << bit)])
        yield f"bit {bit} of byte {place} flipped", content[:place] + flipped + content[place + 1 :]
    for other, found in others.items():
        if found != content:
            yield f"replaced by {other}", found


def _damage(scene: Scene, name: str, inner: str, others: list[Path], flips: int) -> Outcome:
    whole = scene.index(name)
    content = (whole / inner).read_bytes()
    sibling = {
        str(f.relative_to(whole)): f for f in whole.rglob("*") if f.suffix == Path(inner).suffix
    }
    same_name = {
        f"{folder.name}'s": folder / inner for folder in others if (folder / inner).is_file()
    }
    swaps = {key: f.read_bytes() for key, f in (sibling | same_name).items() if f.is_file()}
    every, findings, counts = list(damages(content, flips, swaps)), [], Counter[str]()
    start, questions = 0, scene.questions
    place = scene.place / "index"
    while start < len(every):  # again after a damage that brought the process down
        scene.clear(Job(""))
        shutil.copytree(whole, place)
        work = partial(_try, place, inner, every[start:], questions, scene.place / "done")
        ended = Child(work, scene.place).end(600)
        done = len((scene.place / "done").read_bytes())
        if ended.value is not None:
            tried, found = ended.value
            counts += tried
            findings += found
            break
        findings.append(f"{every[start + done][0]}: {ended.tail}")
        start += done + 1
    return Outcome(counts, findings)


def _try(
    folder: Path,
    inner: str,
    every: list[tuple[str, bytes | None]],
    questions: Any,
    done: Path,
) -> tuple[Counter[str], list[str]]:
    counts, findings = Counter[str](), []
    right = look(folder, questions)
    with done.open("wb", buffering=0) as progress:
        for how, content in every:
            (folder / inner).unlink(missing_ok=True)  # a new one: it may still be mapped
            if content is not None:
                (folder / inner).write_bytes(content)
            try:
                found = look(folder, questions)
            except Exception as error:
                findings.append(f"{how}: {type(error).__name__}: {str(error)[:200]}")
            else:
                refused = isinstance(found, str) and found != "absent"
                if not refused and not same(found, right):
                    findings.append(f"{how}: other answers, in silence")
                elif refused and Path(inner).name not in found and inner != "manifest.json":
                    findings.append(f"{how}: refused without its name: {found[:200]}")
                counts["refused" if refused else "right answers"] += 1
            progress.write(b".")
    return counts, findings
