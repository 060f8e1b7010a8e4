"""The steps of a benchmark on the machines of a Ray cluster, which share its folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from isthmus.benchmarks.protocol.plan import Step
from isthmus.benchmarks.runner.schedule import Schedule
from isthmus.benchmarks.runner.steps import Place
from isthmus.benchmarks.runner.workers import Ended, attempt
from isthmus.cluster import Cluster


def run_on(
    cluster: Cluster,
    schedule: Schedule,
    deadline: float | None,
    settle: Callable[[Ended], None],
) -> None:
    """Does what is waiting, as many steps at a time as the cluster has places.

    A step whose machine dies is done again on another; after the deadline none is begun.
    """
    begun = True
    while begun:
        begun = False

        def tasks() -> Iterator[tuple[Callable[[Step, Place], Ended], tuple[Step, Place]]]:
            nonlocal begun
            while True:
                left = None if deadline is None else deadline - time.monotonic()
                if (step := schedule.next(left)) is None:
                    return  # what waits for others is looked at again when these have ended
                begun = True
                yield attempt, (step, schedule.place)

        for ended in cluster.map(tasks(), schedule.place.folder, on_gpus=True):
            settle(ended)
