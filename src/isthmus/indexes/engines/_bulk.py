"""Engines that are filled by files of bulk requests and searched over HTTP."""

from __future__ import annotations

import json
import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from isthmus.config.output import whole_folder, write_json
from isthmus.errors import InputError
from isthmus.indexes.contents import Contents
from isthmus.indexes.engines import ENCODERS, TOKEN, read_encoders
from isthmus.indexes.engines._json_lines import numbers, term_weights, write_lines
from isthmus.records import Ranking

_LONGEST_ID = 512  # bytes
_PATIENCE = 300  # seconds


class BulkEngine(ABC):
    """A folder to fill (index.json, bulk/), or the address of an engine that was filled from it."""

    fields = ("dense", "sparse")
    files = True

    def __init__(self, place: str, name: str) -> None:
        self.place = place
        self.name = name

    @abstractmethod
    def properties(self, dimensions: Mapping[str, int], approximate: bool) -> dict[str, Any]:
        """How the engine shall keep the vectors of each field."""

    @abstractmethod
    def query(self, field: str, vector: Any, depth: int, approximate: bool) -> dict[str, Any]:
        """The body of a search request; `vector` is a list of numbers, or weights by term."""

    def settings(self, dimensions: Mapping[str, int], approximate: bool) -> dict[str, Any]:
        """Further entries of the engine's index definition."""
        return {}

    def fill(self, contents: Contents, approximate: bool) -> None:
        """Writes index.json, which creates the index, and the requests that fill it."""
        folder, dimensions = Path(self.place), contents.dimensions
        plain = {"id": "keyword", "title": "text", "text": "text"}
        body = {
            "settings": self.settings(dimensions, approximate),
            "mappings": {
                "dynamic": "strict",
                "_meta": {ENCODERS: contents.encoders, "approximate": approximate},
                "properties": {
                    **{name: {"type": kind} for name, kind in plain.items()},
                    **self.properties(dimensions, approximate),
                },
            },
        }
        write_json(folder / "index.json", body)
        with whole_folder(folder / "bulk") as bulk:
            write_lines(bulk, "ndjson", _requests(contents))

    def following(self) -> str:
        """The requests that bring it all into the engine."""
        to, header = f"ADDRESS/{self.name}", "-H 'Content-Type: application"
        return (
            f"cd {shlex.quote(self.place)}\n"
            f"curl -X PUT {to} {header}/json' --data-binary @index.json\n"
            f"for file in bulk/*; do curl -X POST {to}/_bulk {header}/x-ndjson' "
            "--data-binary @$file; done\n"
            f"curl -X POST {to}/_refresh"
        )

    def encoders(self) -> Mapping[str, str]:
        """The fingerprint of the encoder of each field, from the engine's mapping."""
        return read_encoders(self._meta().get(ENCODERS), f"{self.place}/{self.name}")

    def search(
        self, field: str, vectors: Any, depth: int, query_ids: Sequence[str]
    ) -> list[Ranking]:
        """The answers of the engine, equal scores by document id."""
        approximate = bool(self._meta().get("approximate"))
        asked = term_weights(vectors) if field == "sparse" else map(numbers, vectors)
        found = []
        for query_id, vector in zip(query_ids, asked, strict=True):
            body = {
                "query": self.query(field, vector, depth, approximate),
                "size": depth,
                "sort": [{"_score": "desc"}, {"id": "asc"}],
                "track_total_hits": False,
                "_source": False,
            }
            hits = self._ask("_search", body)["hits"]["hits"] if vector else []
            scores = [float(hit["sort"][0]) for hit in hits]
            if field == "dense":
                scores = [_inner_product(score) for score in scores]
            found.append(Ranking(query_id, tuple(hit["_id"] for hit in hits), tuple(scores)))
        return found

    def _meta(self) -> dict[str, Any]:
        answer = self._ask("_mapping")
        meta: dict[str, Any] = next(iter(answer.values()))["mappings"].get("_meta", {})
        return meta

    def _ask(self, what: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        address = f"{self.place.rstrip('/')}/{self.name}/{what}"
        if urlsplit(address).scheme not in ("http", "https"):
            raise self._unreachable(f"{self.place!r} is no address")
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get(TOKEN):
            headers["Authorization"] = token
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(address, data, headers), timeout=_PATIENCE) as answer:  # noqa: S310
                found: dict[str, Any] = json.load(answer)
                return found
        except HTTPError as error:
            said = error.read(300).decode(errors="replace")
            raise self._unreachable(f"{address} answered {error.code}: {said}") from None
        except (URLError, OSError, ValueError) as error:
            raise self._unreachable(f"{address} did not answer: {error}") from None

    def _unreachable(self, what: str) -> InputError:
        return InputError(
            what,
            where="--at",
            allowed="the address of an engine that was filled, http://localhost:9200 say",
            remedy=f"check address and name; a guarded engine is opened by {TOKEN}, whose value "
            "becomes the Authorization header",
        )


def _requests(contents: Contents) -> Iterator[str]:
    for batch in contents.batches():
        columns: dict[str, Iterator[Any]] = {
            field: term_weights(vectors) if field == "sparse" else map(numbers, vectors)
            for field, vectors in batch.vectors.items()
        }
        for document in batch.documents:
            if len(document.id.encode()) > _LONGEST_ID:
                raise InputError(
                    f"the id {document.id!r} is {len(document.id.encode()):,} bytes long",
                    where="the index",
                    allowed=f"ids of up to {_LONGEST_ID} bytes, which is what the engine takes",
                    remedy="give the documents shorter ids and build the index again",
                )
            shown = {"title": document.title, "text": document.text} if contents.texts else {}
            vectors = {field: next(column) for field, column in columns.items()}
            action = json.dumps({"index": {"_id": document.id}}, ensure_ascii=False)
            record = {"id": document.id, **shown, **vectors}
            yield f"{action}\n{json.dumps(record, ensure_ascii=False)}"


def _inner_product(score: float) -> float:
    """The inner product s that both engines return as s + 1, or 1 / (1 - s) if it is negative."""
    return score - 1 if score >= 1 else 1 - 1 / score
