"""What the types of fields do differently: the one place that asks for the type of a field.

What a type needs is imported when it is first used: a search of one does not load the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.indexes.manifest import (
    Bm25Field,
    DenseField,
    FieldAbout,
    FieldCounts,
    Layout,
    SparseField,
    TokensField,
)
from isthmus.indexes.ragged import Both
from isthmus.indexes.vectors import RowReader, Rows, VectorSearch


def files_of(about: FieldAbout, counts: FieldCounts) -> Sequence[str]:
    """The names of the files that a field is read from."""
    if isinstance(about, Bm25Field):
        from isthmus.indexes.bm25 import postings

        return postings.FILES
    if isinstance(about, DenseField):
        from isthmus.indexes.dense import field, hnsw

        return (field.VECTORS, hnsw.FILE)[: 1 + (counts.recall is not None)]
    if isinstance(about, TokensField):
        from isthmus.indexes.tokens.field import FILES

        return FILES
    from isthmus.indexes.sparse import lists

    return lists.FILES


def check_field(folder: Path, about: FieldAbout, counts: FieldCounts, rows: int) -> None:
    """Refuses a field whose files do not fit what is stated, or lead out of each other."""
    if isinstance(about, Bm25Field):
        from isthmus.indexes.bm25.postings import check_postings

        assert counts.tokens is not None
        check_postings(folder, rows, counts.tokens)
    elif isinstance(about, DenseField):
        from isthmus.indexes.dense.field import check_vectors

        check_vectors(folder, about, rows)
    elif isinstance(about, TokensField):
        from isthmus.indexes.tokens.field import check_tokens

        check_tokens(folder, about, counts, rows)
    else:
        from isthmus.indexes.sparse.structure import check_lists

        check_lists(folder, about, _layout(counts), rows)


def open_vectors(
    folder: Path,
    about: FieldAbout,
    counts: FieldCounts,
    rows: int,
    ranks: Callable[[Rows], Rows],
    graph: bool = False,
) -> VectorSearch:
    """The search of a field of vectors; by its graph, where it has one."""
    if isinstance(about, DenseField):
        from isthmus.indexes.dense.field import DenseSearch

        return DenseSearch.open(folder, about, counts, rows, ranks, graph)
    if isinstance(about, TokensField):
        from isthmus.indexes.tokens.field import TokensSearch

        return TokensSearch(folder, about, rows, ranks)
    assert isinstance(about, SparseField), "BM25 is searched over all segments"
    from isthmus.indexes.sparse.field import SparseSearch

    return SparseSearch(folder, about, counts, rows, ranks)


def field_builder(folder: Path, about: FieldAbout, recorded: Mapping[str, int]) -> Any:
    """What fills a field of vectors in a folder, from what earlier work recorded."""
    return _builder(about)(folder, about, recorded)


def is_whole(folder: Path, about: FieldAbout, recorded: Mapping[str, int]) -> bool:
    """Whether the folder of a field of vectors holds all that was recorded of it."""
    return bool(_builder(about).is_whole(folder, about, recorded))


def read_vectors(
    folder: Path, about: FieldAbout, counts: FieldCounts, rows: int, searched: bool = False
) -> RowReader:
    """The vectors of a field as a builder takes them, or as search multiplies them."""
    if isinstance(about, DenseField):
        from isthmus.indexes.dense.builder import DenseRows

        return DenseRows(folder, np.float32 if searched else None)
    if isinstance(about, TokensField):
        from isthmus.indexes.tokens.builder import TokenRows

        return TokenRows(folder)
    assert isinstance(about, SparseField)
    from isthmus.indexes.sparse.forward import SparseRows

    return SparseRows(folder, about, _layout(counts), rows, searched)


def of_type(about: FieldAbout, vectors: Any) -> Any:
    """Those of some vectors that a field takes, where an encoder gives two types at once."""
    if not isinstance(vectors, Both):
        return vectors
    return vectors.tokens if isinstance(about, TokensField) else vectors.vectors


def _builder(about: FieldAbout) -> Any:
    if isinstance(about, DenseField):
        from isthmus.indexes.dense.builder import DenseBuilder

        return DenseBuilder
    if isinstance(about, TokensField):
        from isthmus.indexes.tokens.builder import TokensBuilder

        return TokensBuilder
    assert isinstance(about, SparseField)
    from isthmus.indexes.sparse.builder import SparseBuilder

    return SparseBuilder


def _layout(counts: FieldCounts) -> Layout:
    assert counts.layout is not None
    return counts.layout
