"""How indexes are served: what is fused and re-ranked, and what a request may ask for."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address

from pydantic import Field

from isthmus.config import Settings
from isthmus.retrieval.hybrid_folder import RetrieverSettings


class Limits(Settings):
    """The most that one request may ask for; anything beyond is refused before it is read."""

    query_characters: int = Field(1000, ge=1, description="of a query")
    depth: int = Field(100, ge=1, description="documents per query")
    documents: int = Field(1000, ge=1, description="documents to add at once")
    body_bytes: int = Field(4 * 2**20, ge=1, description="of a request")
    buffered_bytes: int = Field(
        64 * 2**20, ge=1, description="of requests that came, and are not answered yet"
    )
    body_seconds: float = Field(30.0, gt=0, description="in which all of it must have come")
    connections: int = Field(
        2000, ge=1, description="open at once; of a request on one more, the answer is 503"
    )
    idle_seconds: int = Field(
        5, ge=0, description="that a connection stays open after an answer, without a new request"
    )
    waiting: int = Field(1000, ge=1, description="requests that wait for a free thread")


class ServeSettings(RetrieverSettings):
    """Which retrievers are served, to whom, and how much of them one request may have."""

    verb = "serve"

    host: str = Field("127.0.0.1", description="the address to listen at; not loopback: a token")
    port: int = Field(8080, ge=0, le=65535, description="0: any free one")
    hosts: list[str] = Field(
        [], description="names of this server besides localhost, where a proxy stands before it"
    )
    title: str | None = Field(None, description="of the page; null: the name of the first index")
    writable: bool = Field(False, description="documents can be added and deleted")
    judgements: str | None = Field(
        None, description="a BEIR folder, to which judged queries are written as the split `judged`"
    )
    batch: int = Field(64, ge=1, description="queries that are answered together, if they wait")
    remembered: int = Field(2048, ge=0, description="queries whose vectors are kept")
    check_seconds: float = Field(
        1.0, ge=0, description="between two looks for newer indexes; 0: never"
    )
    stop_seconds: int = Field(30, ge=0, description="for requests under way when it stops")
    limits: Limits = Field(Limits(), description="the most that one request may ask for")

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine reach the server."""
        with suppress(ValueError):
            return ip_address(self.host).is_loopback
        return self.host == "localhost"
