"""Every verb killed before each of its steps, and at random moments.

Afterwards the output is what it was before or what the whole job makes, never anything between;
what the command had acknowledged is there; and the same command again goes on from the documents
that were recorded, ends as if nothing had happened, and leaves nothing behind.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.torture.children import Child, Harm
from tests.torture.scene import JOBS, Case, Outcome, Scene, drawn, same

_MOMENTS = 20  # random ones, of each job


def cases(scene: Scene, short: bool) -> Iterable[Case]:
    """A case per job and step, and per job and moment."""
    few = ("add fields", "index dense", "field dense", "given merge", "serve bm25")
    names = few if short else JOBS
    return drawn(_every(scene, names), 8 if short else None)


def _every(
    scene: Scene, names: Iterator[str] | tuple[str, ...] | dict[str, object]
) -> Iterator[Case]:
    for name in names:
        for step in range(1, scene.reference(name).ended.steps + 1):
            yield Case(f"{name}@{step}", lambda name=name, step=step: _kill(scene, name, step))
        for moment in range(_MOMENTS):
            yield Case(
                f"{name}@moment-{moment}",
                lambda name=name, seed=moment: _kill(scene, name, 0, seed),
            )


def _kill(scene: Scene, name: str, step: int, seed: int = 0) -> Outcome:
    job, reference = JOBS[name], scene.reference(name)
    scene.clear(job)
    if step:
        ended = scene.start(job, harm=Harm("kill", step)).end()
    else:
        child: Child = scene.start(job)
        time.sleep(random.Random(f"{name} {seed}").uniform(0, reference.seconds))
        ended = child.kill()
    verb = {"kills of " + name.partition(" ")[0]: int(ended.code == -9)}
    outcome = Outcome(Counter(verb, kills=int(ended.code == -9), finished=int(ended.code == 0)))
    if ended.code not in (-9, 0):
        outcome.findings.append(f"killed, it ended otherwise: {ended.tail}")
    state = scene.state()
    acknowledged = ended.code == 0 or (reference.ended.out and ended.out == reference.ended.out)
    if acknowledged and not same(state, reference.after):
        outcome.findings.append(f"acknowledged, but not there: {str(state)[:200]}")
    elif not unchanged(state, reference.before) and not any(
        same(state, one) for one in (reference.after, *reference.between)
    ):
        outcome.findings.append(f"neither as before nor done: {str(state)[:200]}")
    recorded = 0 if same(state, reference.after) else scene.recorded()
    again = scene.start(job).end(300)
    if again.code:
        outcome.findings.append(f"the same command again fails: {again.tail}")
    elif not same(found := scene.state(), reference.after):
        outcome.findings.append(f"the same command again makes something else: {str(found)[:200]}")
    elif recorded and f"after {recorded} documents" not in again.err:
        outcome.findings.append(f"{recorded} documents were recorded, but it began anew")
    elif left := scene.left_over():
        outcome.findings.append(f"left behind: {left}")
    return outcome


def unchanged(state: object, before: object) -> bool:
    """Whether nothing of the job can be seen yet, or all that can be seen says: unfinished."""
    unfinished = ("unfinished", "is not complete", "has no manifest.json")
    return same(state, before) or (before == "absent" and str(state).endswith(unfinished))
