"""What indexes hold, read back: documents with their vectors, some at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from isthmus.errors import InputError, MismatchError
from isthmus.indexes.arrays import mapped
from isthmus.indexes.dense.index import VECTORS
from isthmus.indexes.kinds import FIELDS, searched_vectors
from isthmus.indexes.manifest import SEGMENTS, TITLES, Manifest
from isthmus.indexes.segments.living import living_parts
from isthmus.indexes.verification import read_manifest
from isthmus.progress import Bar
from isthmus.records import Document

ROWS = 2**12


class Batch(NamedTuple):
    """Documents and, by field, a row for each: an array, or a sparse matrix of scipy."""

    documents: list[Document]
    vectors: dict[str, Any]


class Contents:
    """The documents of one index, or of a dense and a sparse one of the same documents.

    Weights come as the sparse index searches them: cut to its terms, in whole numbers if it has
    those.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        assert 1 <= len(folders) <= 2
        self._folders = folders
        held = [_Held(folder) for folder in folders]
        self._held = {one.field: one for one in held}
        sizes = {one.manifest.documents for one in held}
        if len(self._held) < len(held) or len(sizes) > 1:
            raise self._not_a_pair()

    @property
    def manifests(self) -> dict[str, Manifest]:
        """What is known of the vectors of each field."""
        return {field: held.manifest for field, held in self._held.items()}

    @property
    def texts(self) -> bool:
        """Whether documents come with titles and texts."""
        return any(manifest.texts for manifest in self.manifests.values())

    @property
    def encoders(self) -> dict[str, str]:
        """The fingerprint of the encoder of each field."""
        named = ((field, one.encoder_fingerprint) for field, one in self.manifests.items())
        return {field: found for field, found in named if found is not None}

    @property
    def dimensions(self) -> dict[str, int]:
        """The length of a vector of each field."""
        return {field: manifest.dimension or 0 for field, manifest in self.manifests.items()}

    def __len__(self) -> int:
        return next(iter(self.manifests.values())).documents

    def batches(self) -> Iterator[Batch]:
        """All documents in the order of the index, counted by a bar."""
        leading = "sparse" if "sparse" in self._held else "dense"
        other = self._held["dense"] if len(self._held) == 2 else None
        with Bar("exporting", len(self), "documents") as bar:
            for documents, vectors in self._held[leading].rows():
                batch = Batch(documents, {leading: vectors})
                yield batch if other is None else self._with_dense(batch, other)
                bar.advance(len(documents))

    def _with_dense(self, batch: Batch, dense: _Held) -> Batch:
        found = dense.find([document.id for document in batch.documents])
        if found is None:
            raise self._not_a_pair()
        documents, vectors = found
        keeping = batch.documents if self.manifests["sparse"].texts else documents
        return Batch(keeping, {**batch.vectors, "dense": vectors})

    def _not_a_pair(self) -> MismatchError:
        first, second = (f"{str(folder)!r}" for folder in self._folders)
        return MismatchError(
            f"{first} and {second} cannot be exported together",
            "index one corpus with a dense and with a sparse encoder",
        )


class _Held:
    """What one index folder holds, in segments or whole."""

    def __init__(self, folder: Path) -> None:
        self.manifest = read_manifest(folder)
        if self.manifest.kind not in FIELDS:
            raise InputError(
                f"{str(folder)!r} is {TITLES[self.manifest.kind]}, which holds no vectors",
                "give the corpus itself to Milvus, which has its own BM25; or export a dense or "
                "an inverted index",
            )
        self.field = FIELDS[self.manifest.kind]
        for segment in self.manifest.segments or ():
            read_manifest(folder / SEGMENTS / segment.name)
        self._parts = living_parts(folder, self.manifest)

    def rows(self) -> Iterator[tuple[list[Document], Any]]:
        """Living documents with their vectors."""
        for folder, part in self._parts:
            first = 0
            for block in searched_vectors(folder, self.manifest):
                inside = np.flatnonzero(part.lives[first : first + block.shape[0]])
                for chosen in np.split(inside, range(ROWS, len(inside), ROWS)):
                    documents = [part.store.document(first + int(row)) for row in chosen]
                    if documents:
                        yield documents, block[chosen]
                first += block.shape[0]

    def find(self, ids: Sequence[str]) -> tuple[list[Document], npt.NDArray[np.float32]] | None:
        """The documents of these ids with their dense vectors; None if one is not there."""
        documents: dict[int, Document] = {}
        vectors = np.empty((len(ids), self.manifest.dimension or 0), dtype=np.float32)
        for folder, part in self._parts:
            rows = part.store.locate(ids)
            here = np.flatnonzero((rows >= 0) & part.lives[rows])
            vectors[here] = mapped(folder / VECTORS, folder)[rows[here]]
            documents |= {int(n): part.store.document(int(rows[n])) for n in here}
        if len(documents) < len(ids):
            return None
        return [documents[number] for number in range(len(ids))], vectors
