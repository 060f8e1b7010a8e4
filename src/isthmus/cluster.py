"""Many machines as one: tasks spread over a Ray cluster, done again where a machine dies.

Results come in the order of the tasks. Knows nothing of documents or indexes: every layer above
brings its own tasks.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from isthmus._version import __version__
from isthmus.config import Settings
from isthmus.config.output import writing
from isthmus.errors import InputError, IsthmusError, MismatchError, OutputError, needing
from isthmus.progress import notice

LOCAL = "local"


class ClusterSettings(Settings):
    """Where work is spread to, and in what portions; no result depends on it."""

    address: str = Field(
        description="Address of the head of a Ray cluster, HOST:PORT; auto: the one on this "
        "machine; local: a cluster of this machine alone, while the command runs"
    )
    cpus: int = Field(1, ge=1, description="Number of cores per task")
    gpus: float | None = Field(
        None,
        gt=0,
        description="Number of GPUs per task that encodes; null: one where there are any",
    )
    shard_documents: int = Field(
        65_536,
        ge=1,
        description="Number of documents per task and segment of an index, rounded up to blocks",
    )


Result = TypeVar("Result")
Task = tuple[Callable[..., Result], tuple[Any, ...]]
_LIVES = 10  # machines that may die under one task before it is taken for the cause
_AHEAD = 2  # tasks per place that wait, so that no machine does

in_use: ContextVar[Cluster | None] = ContextVar("in_use", default=None)


def current() -> Cluster | None:
    """The cluster that the work at hand is to be spread over; None on one machine."""
    return in_use.get()


class Cluster:
    """The machines of a Ray cluster that this process has joined.

    They share folders: what one writes, all others and this process read under the same path.
    """

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings

    def places(self, on_gpus: bool = False) -> int:
        """How many tasks can run at a time, on the machines that are there now."""
        there = _ray().cluster_resources()
        places = int(there.get("CPU", 0)) // self.settings.cpus
        if on_gpus and (gpus := self._gpus(there)):
            places = min(places, int(there.get("GPU", 0) / gpus))
        return max(1, places)

    @property
    def machines(self) -> int:
        """How many machines are there now."""
        return max(1, sum(bool(node["Alive"]) for node in _ray().nodes()))

    def map(
        self, tasks: Iterable[Task[Result]], folder: Path, on_gpus: bool = False
    ) -> Iterator[Result]:
        """The results of functions with their arguments, in the order in which these come.

        Few tasks are taken ahead of the results. A task whose machine dies runs again on another,
        perhaps while the first, only out of reach, still runs: it must write what it writes into
        `folder`, under a name of its own, and rename it. `on_gpus`: it uses one where there is one.
        """
        ray = _ray()
        gpus = self._gpus(ray.cluster_resources()) if on_gpus else 0
        portion = {"num_cpus": self.settings.cpus, "num_gpus": gpus}
        self._notice_if_too_large(CPU=self.settings.cpus, GPU=gpus)
        run = ray.remote(max_retries=_LIVES, scheduling_strategy="SPREAD", **portion)(run_task)
        waiting: deque[Any] = deque()
        with _marked(folder) as marker:
            try:
                for function, arguments in tasks:
                    waiting.append(run.remote(marker, function, *arguments))
                    if len(waiting) >= _AHEAD * self.places(on_gpus):
                        yield _fetch(waiting.popleft())
                while waiting:
                    yield _fetch(waiting.popleft())
            finally:
                for reference in waiting:
                    ray.cancel(reference)

    def _notice_if_too_large(self, **portion: float) -> None:
        # No error: some clusters grow when a task requires more than they have.
        found = [node["Resources"] for node in _ray().nodes() if node["Alive"]]
        if not any(all(has.get(k, 0) >= n for k, n in portion.items()) for has in found):
            wanted = " and ".join(f"{amount:g} {kind}" for kind, amount in portion.items())
            notice(f"no machine of the cluster has {wanted}: tasks wait until one joins")

    def _gpus(self, there: dict[str, float]) -> float:
        if self.settings.gpus is not None:
            return self.settings.gpus
        return 1 if there.get("GPU", 0) else 0


def run_task(marker: tuple[str, Path], function: Callable[..., Result], *arguments: Any) -> Result:
    """The result of a function, on a machine of this version that sees the same folder."""
    version, file = marker
    if version != __version__:
        raise MismatchError(
            f"cluster.address: the machine {platform.node()!r} has isthmus {__version__}, this one "
            f"has {version}",
            f"pip install isthmus=={version} there",
        )
    if not file.is_file():
        raise OutputError(
            f"cluster.address: the machine {platform.node()!r} does not see the folder "
            f"{str(file.parent)!r}",
            "put --output and ISTHMUS_CACHE on storage that all machines share under one path",
        )
    return function(*arguments)


@contextmanager
def _marked(folder: Path) -> Iterator[tuple[str, Path]]:
    """A file in a folder, by which a machine knows that it sees the very same folder."""
    folder = folder.absolute()
    marker = folder / f".seen-{secrets.token_hex(8)}"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
    try:
        yield __version__, marker
    finally:
        marker.unlink(missing_ok=True)


def _ray() -> Any:
    """The module ray, untyped: its types reject functions of any number of arguments."""
    return import_module("ray")


def _fetch(reference: Any) -> Any:
    from ray.exceptions import (
        LocalRayletDiedError,
        NodeDiedError,
        OutOfMemoryError,
        RayTaskError,
        WorkerCrashedError,
    )

    try:
        return _ray().get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, IsthmusError):
            raise error.cause from None
        raise
    except LocalRayletDiedError:
        raise OutputError(
            "cluster.address: a machine left the Ray cluster during a task (its raylet died)",
            "read its /tmp/ray/session_latest/logs, start Ray there again, and run the same "
            "command again",
        ) from None
    except (NodeDiedError, OutOfMemoryError, WorkerCrashedError) as error:
        raise OutputError(
            f"cluster.address: a task was tried {_LIVES + 1} times, and its machine or process "
            f"died every time: {str(error).strip().splitlines()[0]}",
            "give each task more memory: fewer at a time (--set cluster.cpus=…) or smaller "
            "shards (--set cluster.shard_documents=…)",
        ) from None


_PATIENCE = 5.0  # seconds that the head of a cluster has to answer


@contextmanager
def connected(settings: ClusterSettings | None) -> Iterator[Cluster | None]:
    """A cluster that parallel work inside the block runs on; None without settings.

    A program that has joined a Ray cluster by itself stays in that one.
    """
    if settings is None:
        yield None
        return
    # Ray sends no usage statistics.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with needing("ray", extra="cluster", needed_for="cluster.address"):
        import ray
    joined = not ray.is_initialized()
    if joined:
        _join(settings.address)
    cluster = Cluster(settings)
    token = in_use.set(cluster)
    try:
        yield cluster
    finally:
        in_use.reset(token)
        if joined:
            ray.shutdown()


def _join(address: str) -> None:
    import ray

    try:
        _check_port(address)
        ray.init(
            address=address,
            include_dashboard=False if address == LOCAL else None,
            log_to_driver=False,  # what goes wrong in a task reaches us as an error
            logging_level=logging.ERROR,
        )
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"cluster.address: no Ray cluster answers at {address!r}: {first[0]}",
            "start one (ray start --head), check the address, or set cluster.address=local",
            f"{LOCAL}, auto, HOST:PORT",
        ) from None


def _check_port(address: str) -> None:
    """Raises an OSError where nothing listens at HOST:PORT: Ray would wait for it for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE):
            pass
