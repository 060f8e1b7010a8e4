"""Tasks on all cores of this machine, or on all machines of the cluster in use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor

from isthmus.cluster import Result, Task, current


def places() -> int:
    """How many tasks can run at a time."""
    cluster = current()
    return (os.cpu_count() or 1) if cluster is None else cluster.places()


def in_parallel(tasks: Iterable[Task[Result]], jobs: int, folder: Path) -> Iterator[Result]:
    """The results of functions with their arguments, in order, few of them waiting.

    One job is done here, by this process. What tasks write, they write into `folder`.
    """
    cluster = current()
    if cluster is not None and jobs > 1:
        yield from cluster.map(tasks, folder)
        return
    pool = Parallel(n_jobs=jobs, return_as="generator", pre_dispatch="2*n_jobs", batch_size=1)
    results: Any = pool(delayed(function)(*arguments) for function, arguments in tasks)
    yield from results


def let_go(jobs: int) -> None:
    """Ends the processes that `in_parallel` keeps: idle, they would hold memory for minutes."""
    if jobs > 1 and current() is None:
        get_reusable_executor().shutdown()
