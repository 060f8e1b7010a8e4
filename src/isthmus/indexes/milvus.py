"""Milvus, embedded (a path that ends in .db) or at any address: dense and sparse vectors."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from isthmus.errors import InputError, OutputError, needing
from isthmus.indexes.index import Index
from isthmus.progress import Bar
from isthmus.records import Document

TOKEN = "ISTHMUS_ENGINE_TOKEN"  # noqa: S105 # where it is found, not what it is
"""The environment variable whose value opens a guarded Milvus."""
_ENCODERS = "encoders"  # among the collection's properties: their fingerprints, by field
_LONGEST = 65_535  # bytes of a string
_ROWS_AT_ONCE = 512


class Milvus:
    """One collection of documents with dense vectors, sparse ones or both.

    Vectors are given by field: `dense` an array, `sparse` a sparse matrix of scipy.
    """

    def __init__(self, place: str, name: str) -> None:
        self.place = place
        self.name = name

    def fill(self, index: Index, fields: Mapping[str, str], hnsw: bool) -> None:
        """Makes the collection of fields of an index, by type, named once it is complete."""
        building = Milvus(self.place, f"{self.name}_building")
        with self._talking():
            if self.client.has_collection(self.name):
                raise OutputError(
                    f"{self.place}: there is a collection {self.name!r} already",
                    "choose another name (--set name=…), or drop the collection",
                )
            self.client.drop_collection(building.name)
        abouts = {kind: index.manifest.fields[name] for kind, name in fields.items()}
        encoders = {kind: one.encoder.fingerprint for kind, one in abouts.items() if one.encoder}
        dimensions = {kind: getattr(one, "dimension", 0) for kind, one in abouts.items()}
        building.create(dimensions, encoders, hnsw)
        with Bar("exporting", None, "rows") as bar:
            for batch in index.batches(list(fields.values())):
                vectors = {kind: batch.vectors[name] for kind, name in fields.items()}
                building.add(batch.rows, vectors)
                bar.advance(len(batch.rows))
        with self._talking():
            self.client.rename_collection(building.name, self.name)
            _ = self._loaded  # for other clients

    def create(
        self, dimensions: Mapping[str, int], encoders: Mapping[str, str], hnsw: bool = False
    ) -> None:
        """Makes an empty collection, for vectors of these lengths by these encoders."""
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=_LONGEST)
        for name in ("title", "text"):
            schema.add_field(name, DataType.VARCHAR, max_length=_LONGEST)
        schema.add_field("metadata", DataType.JSON)
        with self._talking():
            indexes = self.client.prepare_index_params()
            if "dense" in dimensions:
                schema.add_field("dense", DataType.FLOAT_VECTOR, dim=dimensions["dense"])
                kind = "HNSW" if hnsw else "FLAT"
                indexes.add_index("dense", index_type=kind, metric_type="IP")
            if "sparse" in dimensions:
                schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
                indexes.add_index("sparse", index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
            self.client.create_collection(
                self.name,
                schema=schema,
                index_params=indexes,
                consistency_level="Strong",  # what was added is found
                properties={_ENCODERS: json.dumps(dict(encoders))},
            )

    def add(self, documents: Sequence[Document], vectors: Mapping[str, Any]) -> None:
        """Adds documents; those whose ids are there already are replaced.

        Titles and texts, which are only shown, are cut where Milvus takes no more (65,535 bytes).
        """
        columns = {field: _field_rows(field, rows) for field, rows in vectors.items()}
        rows = [
            {
                "id": document.id,
                "title": _cut(document.title),
                "text": _cut(document.text),
                "metadata": dict(document.metadata),
                **{field: next(column) for field, column in columns.items()},
            }
            for document in documents
        ]
        with self._talking():
            for first in range(0, len(rows), _ROWS_AT_ONCE):
                self.client.upsert(self.name, rows[first : first + _ROWS_AT_ONCE])

    @cached_property
    def client(self) -> Any:
        """What talks to the database."""
        from pymilvus import MilvusClient

        # What it logs, with tracebacks, is what it raises too.
        for name in ("pymilvus", "milvus_lite"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        return MilvusClient(self.place, token=os.environ.get(TOKEN, ""))

    @cached_property
    def _loaded(self) -> Any:
        """The client, once the collection is in memory: Milvus lets it go between processes."""
        self.client.load_collection(self.name)
        return self.client

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """Turns what Milvus refuses into our own error."""
        with needing("pymilvus", extra="milvus", needed_for="milvus"):
            from pymilvus.exceptions import MilvusException
        try:
            yield
        except MilvusException as error:
            raise InputError(
                f"Milvus refuses {self.name!r} at {self.place}: {error.message}",
                "check place and name: a path that ends in .db in an existing folder, or an "
                "address (http://localhost:19530) of a Milvus; a guarded one is opened by the "
                f"token in {TOKEN}",
            ) from None


def _field_rows(field: str, vectors: Any) -> Iterator[Any]:
    """The rows of a matrix as Milvus takes them for a field."""
    if field == "dense":
        return iter(vectors)
    # Milvus takes no empty vector: it gets a term beyond the vocabulary, which meets no other. And
    # no whole numbers.
    nothing = {vectors.shape[1]: 1.0}
    return (weights or nothing for weights in _term_weights(vectors))


def _term_weights(matrix: Any) -> Iterator[dict[int, float]]:
    """Weights by term, a row of a sparse matrix of scipy at a time."""
    terms, weights = matrix.indices.tolist(), matrix.data.astype(np.float32).tolist()
    for start, end in pairwise(matrix.indptr.tolist()):
        yield dict(zip(terms[start:end], weights[start:end], strict=True))


def _cut(text: str) -> str:
    return text.encode()[:_LONGEST].decode(errors="ignore")
