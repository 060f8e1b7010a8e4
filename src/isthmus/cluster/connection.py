"""Joining a Ray cluster for the length of a job, and leaving it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from isthmus.cluster.cluster import Cluster, in_use
from isthmus.cluster.settings import LOCAL, ClusterSettings
from isthmus.errors import InputError, needing

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
    with needing("ray", extra="cluster", needed_for="--cluster"):
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
            f"--cluster: no Ray cluster answers at {address!r}: {first[0]}",
            "start one (ray start --head), check the address, or use --cluster local",
            f"{LOCAL}, auto, HOST:PORT",
        ) from None


def _check_port(address: str) -> None:
    """Raises an OSError where nothing listens at HOST:PORT: Ray would wait for it for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE):
            pass
