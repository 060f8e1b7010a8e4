"""Passes that a GPU repeats by itself: captured once for every shape of a batch, then replayed.

A pass is a thousand kernels, most of them shorter than the host needs to launch one. A CUDA graph
launches all of them at once; they read the batch where the first one lay, and write losses where
the first one wrote them. All graphs lie in the memory of one, and share one set of gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isthmus.progress import notice
from isthmus.training.memory import give_back, in_segments, lacks_memory
from isthmus.training.task import Batch

Run = Callable[[Batch], dict[str, Tensor]]  # forward and back: gradients, and what it returns
_MOST = 16  # graphs


class _Pool(NamedTuple):
    """As torch.cuda.MemPool, but it lives as long as a graph does that was captured into it."""

    id: tuple[int, int]


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    given: Batch
    results: dict[str, Tensor]
    gradients: list[tuple[nn.Parameter, Tensor]]  # those of all graphs

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
    before each. A pass may draw from torch's generator of the device, and from no other; only the
    first of a shape may make tensors that later passes read.
    """

    def __init__(self, run: Run, parameters: Sequence[nn.Parameter]) -> None:
        self.run = run
        self.parameters = parameters
        self.captured: dict[object, _Captured] = {}
        self._seen: set[object] = set()
        self._gradients: dict[nn.Parameter, Tensor] = {}
        self._pool: Any = None
        self._stream: Any = None
        self._works: bool | None = None  # None: not known yet

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """The results of the pass, whose gradients the parameters then have."""
        shapes = tuple((name, value.shape, value.dtype) for name, value in sorted(batch.items()))
        key = shapes, tuple(parameter.requires_grad for parameter in self.parameters)
        captured = self.captured.get(key)
        if captured is not None:
            return captured.replay(batch)
        if key not in self._seen:
            self._seen.add(key)
            return self._first(batch)
        if self._works is False or len(self.captured) == _MOST:
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
        self._gradients.clear()
        self._pool = None
        give_back()

    def _first(self, batch: Batch) -> dict[str, Tensor]:
        """What no pass before it needed may be kept for later ones, such as a table of positions.

        Graphs would write over what lies in their memory: they are captured anew, elsewhere.
        """
        if not self.captured:
            return self._launch(batch)
        torch.cuda.empty_cache()  # as before a capture: beside graphs, torch would not by itself
        before = _blocks(self._pool)
        results = self._launch(batch)
        gradients = [each.grad for each in self.parameters if each.grad is not None]
        passing = {each.untyped_storage().data_ptr() for each in gradients}
        if self.captured and _blocks(self._pool) - before - passing:
            notice(
                "a step keeps something in the memory of CUDA graphs, so they are captured anew "
                "(where this is told often, training.graphs=false is quicker)"
            )
            self.release()
        return results

    def _launch(self, batch: Batch) -> dict[str, Tensor]:
        """Kernel by kernel, in the memory of graphs; where that does not suffice, without them."""
        if not self.captured:
            return self.run(batch)
        try:
            with self._beside_graphs():
                results = self.run(batch)
            # Nothing but gradients is left there, and those are gone before the next pass.
            return {name: value.clone() for name, value in results.items()}
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            self._give_up(error)
        return self.run(batch)

    @contextmanager
    def _beside_graphs(self) -> Iterator[None]:
        """What is allocated in here lies where graphs write when they are replayed.

        A pool's memory belongs to the stream that graphs were captured on, and to the thread that
        asks for it: so backwards must go in this one.
        """
        if not in_segments():
            yield
            return
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        try:
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.use_mem_pool(self._pool),
                torch.autograd.set_multithreading_enabled(False),
            ):
                yield
        finally:
            current.wait_stream(self._stream)

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
            self._pool = _Pool(torch.cuda.graph_pool_handle())
            self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        given = {name: value.clone() for name, value in batch.items()}
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        try:
            # Others, such as the thread that pins batches, may go on with what they do.
            with torch.cuda.graph(
                graph, self._pool.id, self._stream, capture_error_mode="thread_local"
            ):
                results = self.run(given)
                gradients = self._shared()
        except Exception as error:
            torch.cuda.set_stream(stream)
            self._give_up(error)
            return None
        return _Captured(graph, given, results, gradients)

    def _shared(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Where a parameter's gradient is first, those of all graphs are: later ones go there."""
        found = {each: each.grad for each in self.parameters if each.grad is not None}
        later = [each for each in found if each in self._gradients]
        if later:
            there = [self._gradients[each] for each in later]
            torch._foreach_copy_(there, [found[each] for each in later])
        self._gradients = {**found, **self._gradients}
        for each in found:
            each.grad = None  # what has been copied is free for the rest of this graph and others
        return [(each, self._gradients[each]) for each in found]

    def _give_up(self, error: Exception) -> None:
        reason = " ".join(str(error).split())
        notice(f"steps are not captured into CUDA graphs ({reason[:200]}), which is slower")
        self._works = False
        for parameter in self.parameters:
            parameter.grad = None
        self.release()


def _blocks(pool: _Pool) -> set[int]:
    """Where what is in use in a pool begins."""
    if not in_segments():
        return set()
    return {
        block["address"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if tuple(segment["segment_pool_id"]) == tuple(pool.id)
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
