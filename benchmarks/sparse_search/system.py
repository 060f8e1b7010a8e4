"""What a system of the comparison can do; systems/ has one file for each."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from benchmarks.sparse_search import vectors


class System(ABC):
    """Builds an index of the vectors in one process, opens and asks it in another."""

    one_at_a_time: ClassVar[bool] = True

    def __init__(self, vectors_folder: Path, folder: Path, jar: str) -> None:
        self.folder, self.index, self.jar = folder, folder / "index", jar
        self._vectors = vectors_folder
        self.queries = vectors.read_queries(vectors_folder)

    @cached_property
    def documents(self) -> vectors.Matrix:
        """The vectors, for building: a process that searches leaves them alone."""
        return vectors.read_documents(self._vectors)

    def prepare(self) -> None:  # noqa: B027 - most read the vectors as they are
        """Writes the vectors as the system reads them, which is no part of building."""

    @abstractmethod
    def build(self) -> None:
        """Makes the index and leaves it on the disk."""

    def bytes(self) -> tuple[int, int]:
        """Bytes on the disk, and of them those that scoring needs."""
        files = [file.stat() for file in self.index.rglob("*") if file.is_file()]
        # Files with holes take less than their size.
        whole = sum(min(file.st_size, file.st_blocks * 512) for file in files)
        return whole, whole

    @abstractmethod
    def open(self) -> None:
        """Opens the index that another process has built, for one thread."""

    def search(self, number: int, depth: int) -> Any:
        """The answer to one query, on one thread, as the system gives it."""
        raise NotImplementedError

    @abstractmethod
    def rows(self, found: Any) -> np.ndarray:
        """The numbers of the documents in an answer."""

    def search_all(self, depth: int, threads: int) -> tuple[float, list[Any]]:
        """Queries per second when all are asked at once, and the answers."""
        numbers = range(self.queries.shape[0])
        start = time.perf_counter()
        if threads == 1:
            found = [self.search(number, depth) for number in numbers]
        else:
            with ThreadPoolExecutor(threads) as pool:
                found = list(pool.map(lambda number: self.search(number, depth), numbers))
        return len(numbers) / (time.perf_counter() - start), found


def usable_cores() -> int:
    """The processor cores that a process may use."""
    return len(os.sched_getaffinity(0))
