"""Whether the files of a dense index have the shapes that its manifest states."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from isthmus.indexes.arrays import mapped
from isthmus.indexes.dense.index import VECTORS
from isthmus.indexes.manifest import Manifest
from isthmus.indexes.structure import refusing, shaped


def examine(folder: Path, manifest: Manifest) -> None:
    """Refuses vectors of another shape or type."""
    assert manifest.dtype is not None
    assert manifest.dimension is not None
    rows, dimension = manifest.documents, manifest.dimension
    with refusing(folder, VECTORS):
        vectors = mapped(folder / VECTORS, folder)
        shaped(vectors, (rows, dimension), np.dtype(manifest.dtype).str)
