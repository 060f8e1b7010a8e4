"""CUDA graphs of forward and backward passes: captured once per batch shape, then replayed.

A pass is a thousand kernels, most of them shorter than their launch. A CUDA graph launches all of
them at once; they read the batch and write the losses at the addresses of the captured pass. All
graphs share one memory pool and one set of gradients.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isthmus.progress import notice
from isthmus.training.task import Batch

Run = Callable[[Batch], dict[str, Tensor]]  # forward and backward; sets gradients
_MOST = 16  # graphs


class _Pool(NamedTuple):
    """A stand-in for torch.cuda.MemPool that lives as long as the graphs captured into it."""

    id: tuple[int, int]


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    given: Batch
    results: dict[str, Tensor]
    gradients: list[tuple[nn.Parameter, Tensor]]  # shared by all graphs

    def replay(self, batch: Batch) -> dict[str, Tensor]:
        names = list(batch)
        torch._foreach_copy_([self.given[name] for name in names], [batch[name] for name in names])
        self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.results


class Graphs:
    """Runs passes; the second of a shape is captured, and replayed from then on.

    Results are overwritten by the next pass, and so are gradients, which must be None before each.
    A pass may draw random numbers from torch's generator of the device only; tensors that later
    passes read may be made in the first pass of a shape only.
    """

    def __init__(self, run: Run, parameters: Sequence[nn.Parameter]) -> None:
        self.run = run
        self.parameters = parameters
        self.captured: dict[object, _Captured] = {}
        self._seen: set[object] = set()
        self._gradients: dict[nn.Parameter, Tensor] = {}
        self._pool: Any = None
        self._stream: Any = None
        self._works: bool | None = None  # None: not tried yet

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """The results of the pass; its gradients are set on the parameters."""
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
        """Releases the memory of all graphs; shapes that come again are captured again."""
        self.captured.clear()
        self._gradients.clear()
        self._pool = None
        give_back()

    def _first(self, batch: Batch) -> dict[str, Tensor]:
        """Runs the first pass of a shape, which may cache tensors, such as a table of positions.

        Graphs would overwrite tensors in their pool: if there are any, all are captured anew.
        """
        if not self.captured:
            return self._launch(batch)
        torch.cuda.empty_cache()  # as capturing does; beside graphs, torch would not
        before = _blocks(self._pool)
        results = self._launch(batch)
        gradients = [each.grad for each in self.parameters if each.grad is not None]
        passing = {each.untyped_storage().data_ptr() for each in gradients}
        if self.captured and _blocks(self._pool) - before - passing:
            notice(
                "a step keeps tensors in the memory of CUDA graphs, so they are captured anew "
                "(if this repeats, set training.graphs=false)"
            )
            self.release()
        return results

    def _launch(self, batch: Batch) -> dict[str, Tensor]:
        """Runs a pass without a graph, in the pool of graphs; gives graphs up if memory lacks."""
        if not self.captured:
            return self.run(batch)
        try:
            with self._beside_graphs():
                results = self.run(batch)
            # Only gradients stay in the pool, and they are dropped before the next pass.
            return {name: value.clone() for name, value in results.items()}
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            self._give_up(error)
        return self.run(batch)

    @contextmanager
    def _beside_graphs(self) -> Iterator[None]:
        """Allocates in the pool of graphs, whose replays overwrite it.

        A pool belongs to the stream of the captures, and to the thread that enters it: so the
        backward pass must run in this thread.
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
        """Runs a pass with synchronisation forbidden, to learn whether it can be captured.

        An error during a capture would leave the device's generator in an undefined state.
        """
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the mode being a prototype
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
            # Other threads, such as the one that pins batches, may use the device meanwhile.
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
        """Parameters with the gradients that all graphs share; later graphs copy theirs to them."""
        found = {each: each.grad for each in self.parameters if each.grad is not None}
        later = [each for each in found if each in self._gradients]
        if later:
            there = [self._gradients[each] for each in later]
            torch._foreach_copy_(there, [found[each] for each in later])
        self._gradients = {**found, **self._gradients}
        for each in found:
            each.grad = None  # its memory is free for the rest of this graph and for others
        return [(each, self._gradients[each]) for each in found]

    def _give_up(self, error: Exception) -> None:
        reason = " ".join(str(error).split())
        notice(f"steps are not captured into CUDA graphs ({reason[:200]}), which is slower")
        self._works = False
        for parameter in self.parameters:
            parameter.grad = None
        self.release()


def _blocks(pool: _Pool) -> set[int]:
    """The addresses of the blocks in use in a pool."""
    if not in_segments():
        return set()
    return {
        block["address"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if tuple(segment["segment_pool_id"]) == tuple(pool.id)
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


# The environment variables of the allocator; torch takes the first that is set.
_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_LACKING = ("out of memory", "ALLOC_FAILED")  # of CUDA itself; of cuBLAS and cuDNN


@contextmanager
def growing_segments() -> Iterator[None]:
    """Lets the allocator's segments expand, unless the environment sets that already.

    In fixed segments, batches of many shapes leave gaps that can be as large as a batch.
    """
    given = next((os.environ[name] for name in _SETTINGS if os.environ.get(name)), "")
    if not torch.cuda.is_available() or "expandable_segments" in given or not in_segments():
        yield
        return

    def let(grow: bool) -> None:  # with the environment's settings, which would be reset otherwise
        settings = [given] * bool(given) + [f"expandable_segments:{grow}"]
        torch._C._accelerator_setAllocatorSettings(",".join(settings))

    let(grow=True)
    try:
        yield
    finally:
        let(grow=False)
        give_back()  # free memory in expanded segments would stay unused from here on


def in_segments() -> bool:
    """Whether torch's own allocator is in use, not backend:cudaMallocAsync."""
    return bool(torch.cuda.get_allocator_backend() == "native")


def give_back() -> None:
    """Releases free memory to the device, after synchronising."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # For expandable segments, torch waits only for the stream that allocated them.
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def lacks_memory(error: RuntimeError) -> bool:
    """Whether an error means out of memory; libraries word it differently."""
    message = str(error)
    return isinstance(error, torch.OutOfMemoryError) or any(words in message for words in _LACKING)
