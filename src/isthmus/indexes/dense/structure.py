"""Whether the files of a dense index have the shapes that its manifest states."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from isthmus.indexes.arrays import mapped
from isthmus.indexes.dense.codes import CODES, SIZES
from isthmus.indexes.dense.index import VECTORS
from isthmus.indexes.manifest import Manifest
from isthmus.indexes.structure import refusing, shaped


def examine(folder: Path, manifest: Manifest) -> None:
    """Refuses vectors or codes of another shape or type."""
    assert manifest.dtype is not None
    assert manifest.dimension is not None
    rows, dimension = manifest.documents, manifest.dimension
    kinds = {VECTORS: (np.dtype(manifest.dtype).str, dimension)}
    if manifest.codes is not None:
        kinds |= {CODES: ("i1", dimension), SIZES: ("<f8", 3)}
    for name, (kind, width) in kinds.items():
        with refusing(folder, name):
            shaped(mapped(folder / name, folder), (rows, width), kind)
