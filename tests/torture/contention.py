"""Two commands that write at one place, the first held up before each of its steps in turn; and
readers of an index that open it again and again while it is written.

Each ends well or is refused; one at least ends well; and what ended well is there, whole. Readers
find what was there before or what is there after, and no error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from tests.torture.children import Child, Ended, Harm
from tests.torture.scene import CHANGING, JOBS, Case, Job, Outcome, Scene, drawn, same, watch

_PATIENCE = 5.0  # seconds for the second command, which may wait for the first
_OTHERS: dict[str, str] = {
    "index dense": "index OTHER --model MODEL --output OUTPUT",
    "index bm25": "index OTHER --output OUTPUT",
}
"""Another job for the same place."""


def cases(scene: Scene, short: bool) -> Iterable[Case]:
    """A case per pair of jobs and step of the first."""
    names = ("index bm25", "delete dense") if short else JOBS
    read = ("given add", "given merge") if short else [n for n in JOBS if JOBS[n].start]
    readers = [Case(f"readers of {name}", partial(_read, scene, name)) for name in read]
    return [*readers, *drawn(_every(scene, names), 8 if short else None)]


def _every(scene: Scene, names: Any) -> Iterator[Case]:
    for name in names:
        kind = name.partition(" ")[2]
        pairs = {name: JOBS[name].words}
        if name in _OTHERS:
            pairs["another index"] = _OTHERS[name]
        if kind in CHANGING and not name.startswith("index"):
            pairs |= {f"{verb} {kind}": JOBS[f"{verb} {kind}"].words for verb in _UPDATES}
            pairs["delete others"] = "delete OUTPUT d4 d5 --set problems=skip"
        for second, words in pairs.items():
            # Every step of two equal commands, every fifth of two that differ.
            stride = 1 if second == name and not JOBS[name].slow else 5
            for step in range(1, scene.reference(name).ended.steps + 1, stride):
                run = partial(_both, scene, name, second, words, step)
                yield Case(f"{name} & {second}@{step}", run)


_UPDATES = ("add", "delete", "merge")
_READERS = 2


def _read(scene: Scene, name: str) -> Outcome:
    job, reference = JOBS[name], scene.reference(name)
    scene.clear(job)
    stop, output, questions = scene.place / "cache" / "stop", scene.output, scene.questions
    readers = [Child(lambda: watch(output, questions, stop), scene.place) for _ in range(_READERS)]
    ended = scene.start(job).end(300)
    stop.touch()
    outcome = Outcome(Counter(readers=_READERS))
    if ended.code:
        outcome.findings.append(f"with readers it fails: {ended.tail}")
    known = (reference.before, reference.after, *reference.between)
    for reader in readers:
        seen = reader.end()
        if seen.value is None:
            outcome.findings.append(f"a reader failed: {seen.tail}")
        for state in seen.value or ():
            outcome.counts["states seen"] += 1
            if not any(same(state, one) for one in known):
                outcome.findings.append(f"a reader saw {str(state)[:300]}")
    return outcome


def _both(scene: Scene, name: str, second: str, words: str, step: int) -> Outcome:
    job = JOBS[name]
    scene.clear(job)
    first = scene.start(job, harm=Harm("pause", step))
    first.wait_paused()
    other = Child(scene.work(words), scene.place)
    waited = other.wait(_PATIENCE) is None
    first.go_on()
    ends = first.end(300), other.end(300)
    outcome = Outcome(Counter(pairs=1, **_counted(ends), waited=int(waited)))
    for which, end in zip((name, second), ends, strict=True):
        if end.code and not end.refused:
            outcome.findings.append(f"{which} ended without the project's words: {end.tail}")
    if all(end.code for end in ends):
        outcome.findings.append(f"both failed: {ends[0].tail} & {ends[1].tail}")
    state, left = scene.state(), scene.left_over()
    wanted = list(_expected(scene, job, words, ends))  # needs the place
    if not any(same(state, one) for one in wanted):
        outcome.findings.append(
            f"ended with {ends[0].code} and {ends[1].code}, but there is {str(state)[:200]}"
        )
    elif left:
        outcome.findings.append(f"left behind: {left}")
    return outcome


def _counted(ends: tuple[Ended, Ended]) -> dict[str, int]:
    done = sum(end.code == 0 for end in ends)
    return {"both done": int(done == 2), "one refused": int(done == 1)}


def _expected(scene: Scene, job: Job, words: str, ends: tuple[Ended, Ended]) -> Iterator[Any]:
    """What may lie there: the commands that ended well, one after the other in either order."""
    done = tuple(
        command for command, end in zip((job.words, words), ends, strict=True) if end.code == 0
    )
    for order in {done, done[::-1]}:
        yield scene.after(job.start, order)
