"""Passes that a GPU repeats by itself: captured once for every shape of a batch, then replayed.

A pass is a thousand kernels, most of them shorter than the host needs to launch one. A CUDA graph
launches all of them at once; they read the batch where the first one lay, and write gradients and
losses where the first one wrote them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isthmus.progress import notice
from isthmus.training.task import Batch

Run = Callable[[Batch], dict[str, Tensor]]  # forward and back: gradients, and what it returns
_MOST = 16  # graphs
_SHARE = 1 / 8  # of the device's memory for the gradients that graphs hold
_NO_MEMORY = ("out of memory", "ALLOC_FAILED")  # of CUDA itself; of cuBLAS and cuDNN


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
        self._works: bool | None = None  # None: not known yet

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """The results of the pass, whose gradients the parameters then have."""
        shapes = tuple((name, value.shape, value.dtype) for name, value in sorted(batch.items()))
        key = shapes, tuple(parameter.requires_grad for parameter in self.parameters)
        captured = self.captured.get(key)
        if captured is not None:
            return captured.replay(batch)
        if key not in self._seen or self._works is False or len(self.captured) == self._most:
            self._seen.add(key)
            return self._launch(batch)
        if self._works is None:
            return self._try(batch)
        captured = self._capture(batch)
        if captured is None:
            return self._launch(batch)
        self.captured[key] = captured
        return captured.replay(batch)

    def release(self) -> None:
        """Gives back the memory of all graphs; what is seen again is captured again."""
        self.captured.clear()
        self._pool = None
        torch.cuda.empty_cache()

    @cached_property
    def _most(self) -> int:
        """How many graphs there may be: each holds gradients of its own."""
        size = sum(each.numel() * each.element_size() for each in self.parameters)
        whole = torch.cuda.get_device_properties(self.parameters[0].device).total_memory
        return max(1, min(_MOST, int(_SHARE * whole / max(size, 1))))

    def _launch(self, batch: Batch) -> dict[str, Tensor]:
        """Kernel by kernel; graphs make room where there is not enough for both."""
        try:
            return self.run(batch)
        except RuntimeError as error:
            if not self.captured or not lacks_memory(error):
                raise
            self._give_up(error)
        return self.run(batch)

    def _try(self, batch: Batch) -> dict[str, Tensor]:
        """Kernel by kernel; one that has to wait for the device refuses, and does no harm yet.

        In the middle of a capture it would leave the device's generator in a state of its own.
        """
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            results = self.run(batch)
            self._works = True
            return results
        except RuntimeError as error:
            self._give_up(error)
        finally:
            torch.cuda.set_sync_debug_mode(before)
        return self.run(batch)

    def _capture(self, batch: Batch) -> _Captured | None:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        given = {name: value.clone() for name, value in batch.items()}
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        try:
            # Others, such as the thread that pins batches, may go on with what they do.
            with torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):
                results = self.run(given)
        except Exception as error:
            torch.cuda.set_stream(stream)
            self._give_up(error)
            return None
        gradients = [
            (parameter, parameter.grad)
            for parameter in self.parameters
            if parameter.grad is not None
        ]
        return _Captured(graph, given, results, gradients)

    def _give_up(self, error: Exception) -> None:
        reason = " ".join(str(error).split())
        notice(f"steps are not captured into CUDA graphs ({reason[:200]}), which is slower")
        self._works = False
        for parameter in self.parameters:
            parameter.grad = None
        self.release()


def lacks_memory(error: RuntimeError) -> bool:
    """Whether a GPU had too little: libraries that allocate on it say so in words of their own."""
    told = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(words in told for words in _NO_MEMORY)
