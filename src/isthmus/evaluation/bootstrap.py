"""How far a mean could move with other queries of the same kind: bootstrap intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_BLOCK = 2**22  # draws held at a time: 32 MiB as counts, 32 MiB as float64


def mean_intervals(
    scores: ArrayLike, samples: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> NDArray[np.float64]:
    """The percentile bootstrap interval (low, high) of the mean of each row, shape (rows, 2).

    A row holds one score per query. Each sample draws as many queries as there are, with
    replacement; all rows share the draws, so a row's interval does not depend on the others.
    """
    values = np.atleast_2d(np.asarray(scores, float))
    queries = values.shape[1]
    assert queries, "there is no mean over no queries"
    generator = np.random.default_rng(seed)
    means = np.empty((samples, len(values)))
    step = max(1, _BLOCK // queries)
    for start in range(0, samples, step):
        size = min(step, samples - start)
        drawn = generator.integers(0, queries, size=(size, queries))
        # How often each query was drawn: one matrix product then serves all rows.
        drawn += queries * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * queries).reshape(size, queries)
        means[start : start + size] = counts.astype(float) @ values.T / queries
    tail = (1.0 - confidence) / 2.0
    return np.quantile(means, [tail, 1.0 - tail], axis=0).T
