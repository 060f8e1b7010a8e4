"""Which cluster, and how much of it one task takes."""

from __future__ import annotations

from pydantic import Field

from isthmus.config import Settings

LOCAL = "local"


class ClusterSettings(Settings):
    """Where work is spread to, and in what portions; no result depends on it."""

    address: str = Field(
        description="of the head of a Ray cluster, HOST:PORT, or auto for the one on this machine; "
        "local: a cluster of this machine alone, for as long as the command runs"
    )
    cpus: int = Field(1, ge=1, description="cores that a task takes")
    gpus: float | None = Field(
        None, gt=0, description="more than 0, that encoding takes; null: one where there are any"
    )
    shard_documents: int = Field(
        65_536, ge=1, description="in one task and one segment of an index; rounded up to blocks"
    )
