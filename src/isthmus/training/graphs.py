"""Passes that a GPU repeats by itself: captured once for every shape of a batch, then replayed.

A pass is a thousand kernels, most of them shorter than the host needs to launch one. A CUDA graph
launches all of them at once; they read the batch where the first one lay, and write gradients and
losses where the first one wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isthmus.progress import notice
from isthmus.training.task import Batch

Run = Callable[[Batch], dict[str, Tensor]]  # forward and back: gradients, and what it returns
_MOST = 16  # graphs: each holds gradients of its own


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    given: Batch
    results: dict[str, Tensor]
    gradients: list[tuple[nn.Parameter, Tensor]]

    def replay(self, batch: Batch) -> dict[str, Tensor]:
        names = list(batch)
        torch._foreach_copy_([self.given[name] for name in names], [batch[name] for name in names])
        self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.results


class Graphs:
    """Runs passes; one whose shapes have been seen before is captured, and replayed from then on.

    What comes back is overwritten by the next pass, and so are the gradients, which must be none
    before each. A pass may draw from torch's generator of the device, and from no other.
    """

    def __init__(self, run: Run, parameters: Sequence[nn.Parameter]) -> None:
        self.run = run
        self.parameters = parameters
        self.captured: dict[object, _Captured] = {}
        self._seen: set[object] = set()
        self._pool: Any = None
        self._works = True

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """The results of the pass, whose gradients the parameters then have."""
        shapes = tuple((name, value.shape, value.dtype) for name, value in sorted(batch.items()))
        captured = self.captured.get(shapes)
        if captured is None and self._works and shapes in self._seen:
            captured = self._capture(batch)
            if captured is not None:
                self.captured[shapes] = captured
        self._seen.add(shapes)
        return self.run(batch) if captured is None else captured.replay(batch)

    def release(self) -> None:
        """Gives back the memory of all graphs; what is seen again is captured again."""
        self.captured.clear()
        self._pool = None

    def _capture(self, batch: Batch) -> _Captured | None:
        if len(self.captured) == _MOST:
            return None
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        given = {name: value.clone() for name, value in batch.items()}
        graph = torch.cuda.CUDAGraph()
        try:
            # Others, such as the thread that pins batches, may go on with what they do.
            with torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):
                results = self.run(given)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            notice(f"steps are not captured into CUDA graphs ({reason[:200]}), which is slower")
            self._works = False
            for parameter in self.parameters:
                parameter.grad = None
            return None
        gradients = [
            (parameter, parameter.grad)
            for parameter in self.parameters
            if parameter.grad is not None
        ]
        return _Captured(graph, given, results, gradients)
