"""Several rankings of one query made into one; one file per way of doing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isthmus.records import Ranking
from isthmus.registry import Registry

Fusion = Callable[[Sequence[Ranking], Sequence[float]], Ranking]
"""Rankings of one query and a weight for each, to one ranking of all their documents."""

fusions = Registry("isthmus.search.fusion", "fusion")
