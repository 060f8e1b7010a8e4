"""The best of many scores, with one rule for ties everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def best(
    scores: npt.NDArray[np.floating[Any]], ranks: npt.NDArray[np.int64], depth: int
) -> npt.NDArray[np.int64]:
    """Positions of the `depth` highest scores, best first, equal scores by lower rank.

    All scores equal to the last one that fits are weighed by rank, so that the answer does not
    depend on which of them a partial sort happens to meet first.
    """
    kept = np.arange(len(scores))
    if len(scores) > depth:
        last = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        kept = np.flatnonzero(scores >= last)
    kept = kept[np.argsort(-scores[kept])]
    # One number per document, by score first: sorting by two keys takes twice as long.
    keys = ranks[kept].astype(np.int64)
    keys[1:] += np.cumsum(np.diff(scores[kept]) != 0) << 32
    order: npt.NDArray[np.int64] = kept[np.argsort(keys)][:depth]
    return order
