"""Jobs of the writer itself, with vectors that are given: they take a fraction of a second.

The index has a field of each type, passages, and metadata of every type.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from isthmus.indexes.documents import blocks
from isthmus.indexes.manifest import (
    Bm25Field,
    Bm25Settings,
    CorpusOrigin,
    DenseField,
    EncoderOrigin,
    FieldAbout,
    Fusion,
    Manifest,
    SparseField,
    TokensField,
    TokensSettings,
)
from isthmus.indexes.ragged import Ragged, TokenVectors
from isthmus.indexes.writer import IndexWriter
from isthmus.records import Document, Passage
from isthmus.text.passages import Cut

DENSE, TERMS = 6, 40
_BLOCK = 8
_CUT = Cut(length=16, overlap=0)
_ENCODER = EncoderOrigin(name="none", fingerprint="none")
_FIELDS: dict[str, FieldAbout] = {
    "bm25": Bm25Field(settings=Bm25Settings().resolved("english")),
    "given-dense": DenseField(encoder=_ENCODER, dimension=DENSE),
    "given-sparse": SparseField(encoder=_ENCODER, dimension=TERMS),
    "given-tokens": TokensField(
        encoder=_ENCODER,
        dimension=DENSE,
        settings=TokensSettings(bits=2, pooling=2),
        centre=[0.25] * DENSE,
    ),
}
_NEW: dict[str, FieldAbout] = {name: one for name, one in _FIELDS.items() if name != "bm25"}


def build(output: Path) -> None:
    """An index of 40 documents, block by block."""
    _begin(output, "build", documents(0, 40))


def grow(output: Path) -> None:
    """An index in two segments, from which documents were deleted."""
    _begin(output, "first", [*documents(5, 30), *documents(38, 40, "gone")])
    add(output)
    delete(output)


def words(output: Path) -> None:
    """An index of words alone, in two segments, from which documents were deleted."""
    _begin(output, "first", documents(0, 25), fields={"bm25": _FIELDS["bm25"]}, cut=False)
    with IndexWriter(output) as writer:
        _fill(writer, documents(20, 40))
        writer.delete(["d1", "d33"])
        writer.commit()


def overwrite(output: Path) -> None:
    """Another index in the place of one."""
    _begin(output, "overwrite", documents(10, 44, "other"))


def add(output: Path) -> None:
    """New documents, and others anew; one comes twice."""
    with IndexWriter(output, job="add") as writer:
        _fill(writer, [*documents(20, 45, "more"), *documents(22, 23, "again")])
        writer.commit()
        writer.merge()


def delete(output: Path) -> None:
    """Fewer documents."""
    with IndexWriter(output) as writer:
        writer.delete(["d6", "d7", "d21", "nothing"])
        writer.commit()
        writer.merge()


def merge(output: Path) -> None:
    """One segment."""
    with IndexWriter(output) as writer:
        writer.merge(everything=True)


def field(output: Path) -> None:
    """Passages, and fields of vectors over them."""

    def encode(parts: Iterator[list[Document]]) -> Iterator[tuple[Sequence[Document], Any]]:
        for part in parts:
            for block in blocks(part, _BLOCK):
                yield block, _vectors(block, _NEW)

    with IndexWriter(output, job="field") as writer:
        if new := {n: one for n, one in _NEW.items() if n not in writer.manifest.fields}:
            writer.add_fields(new, encode, (_CUT, passages), {"given-dense": 2.0})


def weights(output: Path) -> None:
    """Other weights."""
    with IndexWriter(output) as writer:
        writer.commit(fusion=Fusion(weights={"bm25": 0.25}))


@cache
def questions() -> dict[str, Any]:
    """What the fields are asked, by their names."""
    asked = [Document(f"q{number}", "") for number in range(8)]
    return _vectors(asked, _NEW)


def documents(first: int, last: int, kind: str = "") -> list[Document]:
    """Documents of a kind, by their numbers."""
    found = []
    for number in range(first, last):
        generator = random.Random(f"{number} {kind}")
        text = " ".join(generator.choices(["bapo", "dori", "kesu", "lite", "muri", "nasu"], k=20))
        metadata: dict[str, Any] = {"year": 2000 + number % 9, "lang": ["en", "de"][: number % 3]}
        if number % 2:
            metadata |= {
                "price": number / 4,
                "old": number % 4 == 1,
                "mixed": [1, "a"][number % 3 % 2],
            }
        found.append(
            Document(
                f"{kind if kind == 'gone' else 'd'}{number}", text, f"t{number}", metadata=metadata
            )
        )
    return found


def passages(given: Iterable[Document]) -> Iterator[Passage]:
    """Each document in two."""
    for one in given:
        half = len(one.text) // 2
        for number, (start, end) in enumerate(((0, half), (half, len(one.text))), start=1):
            text = one.text[start:end]
            yield Passage(
                f"{one.id}#{number}", text, one.title, "", start, end, metadata=one.metadata
            )


def _begin(
    output: Path,
    job: str,
    given: Sequence[Document],
    fields: dict[str, FieldAbout] = _FIELDS,
    cut: bool = True,
) -> None:
    origin = CorpusOrigin(spec="given", fingerprint=job)
    manifest = Manifest(corpus=origin, passages=_CUT if cut else None, fields=fields)
    with IndexWriter(output, manifest, job) as writer:
        _fill(writer, given)
        writer.commit()


def _fill(writer: IndexWriter, given: Sequence[Document]) -> None:
    if done := writer.done:
        print(f"after {done} documents", file=sys.stderr)
    for block in blocks(given[done:], _BLOCK):
        rows: Sequence[Document] = block
        if writer.manifest.passages is not None:
            rows = list(passages(block))
        writer.add(block, rows, _vectors(rows, writer.manifest.fields))


def _vectors(rows: Sequence[Document], fields: Any) -> dict[str, Any]:
    """Vectors that follow from ids and texts."""
    found: dict[str, Any] = {}
    seeds = [zlib.crc32(f"{row.id} {row.text}".encode()) for row in rows]
    drawn = np.stack([np.random.default_rng(seed).random(DENSE + TERMS) for seed in seeds])
    if "given-dense" in fields:
        found["given-dense"] = (drawn[:, :DENSE] - 0.5).astype(np.float32)
    if "given-sparse" in fields:
        sparse = np.where(drawn[:, DENSE:] > 0.7, drawn[:, DENSE:], 0).astype(np.float32)
        found["given-sparse"] = scipy.sparse.csr_matrix(sparse)
    if "given-tokens" in fields:
        found["given-tokens"] = _tokens(seeds)
    return found


def _tokens(seeds: Sequence[int]) -> TokenVectors:
    """Up to 6 tokens of each row, all of different pieces: of queries too."""
    vectors, pieces = [], []
    for seed in seeds:
        generator = np.random.default_rng(seed)
        count = int(generator.integers(0, 7))
        vectors.append(generator.standard_normal((count, DENSE)).astype(np.float32))
        pieces.append(np.sort(generator.choice(TERMS, count, replace=False)))
    return TokenVectors(Ragged.of(vectors, vectors[0]), Ragged.of(pieces, pieces[0]))
