"""HNSW: a graph of the vectors of a dense index, which finds near ones without scoring all.

It may miss documents; those that it finds are ranked by exact inner products. It lies in the folder
`hnsw` inside that of the index that it was made of, and can be deleted at any time.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import Field

from isthmus.config import Settings
from isthmus.config.safe_names import PlainName
from isthmus.config.sealed_json import UnreadableError, read_mapping
from isthmus.errors import InputError, MismatchError, SettingsError, needing
from isthmus.indexes.integrity import Count, StoredFile, check, damaged, parsing
from isthmus.indexes.manifest import Manifest

HNSW = "hnsw"
ABOUT = "about.json"
_QUERIES = 200  # that a graph is measured with
Rows = npt.NDArray[np.int64]


class HnswSettings(Settings):
    """How a graph of vectors is built and searched: more of anything finds more."""

    neighbours: int = Field(32, ge=2, description="links of a vector")
    construction: int = Field(200, ge=1, description="vectors met while one is placed")
    effort: int = Field(128, ge=1, description="vectors met while searching")
    oversampling: int = Field(2, ge=1, description="candidates scored exactly for every answer")


class About(Settings):
    """What a graph was made of, and how much of the exact answers it finds."""

    settings: HnswSettings
    made_of: str
    file: PlainName
    stored: StoredFile
    depths: list[int]
    recall: list[float]
    speedup: list[float]
    queries: Count

    def summary(self) -> str:
        """Its recall and speed in one line."""
        found = (
            f"{recall:.1%} of the {depth:,} nearest documents, {speedup:,.1f} times as fast as "
            "exact search"
            for depth, recall, speedup in zip(self.depths, self.recall, self.speedup, strict=True)
        )
        return f"hnsw: finds {'; '.join(found)} ({self.queries:,} queries, all at once)"


class Graph:
    """A faiss index of the vectors, in eight bits each."""

    def __init__(self, index: Any, settings: HnswSettings) -> None:
        self._index = index
        self._settings = settings

    @classmethod
    def open(cls, folder: Path, manifest: Manifest) -> Graph:
        """The graph of a dense index; a damaged one, or one of other vectors, is refused."""
        about = read_about(folder)
        if about is None:
            raise not_there(folder)
        check_graph(folder, about)
        if about.made_of != fingerprint(manifest):
            raise MismatchError(
                f"the hnsw graph of {str(folder)!r} was built from another index",
                f"build it again: {building_command(folder, about.settings)}",
            )
        faiss = import_faiss("hnsw")
        file = folder / HNSW / about.file
        with parsing(file, folder):
            return cls(faiss.read_index(str(file)), about.settings)

    def near(self, queries: npt.NDArray[np.float32], depth: int) -> Iterator[Rows]:
        """Rows that are probably among the `depth` best, query after query."""
        count = min(depth * self._settings.oversampling, self._index.ntotal)
        # It returns no more than it meets.
        self._index.hnsw.efSearch = max(self._settings.effort, count)
        _, found = self._index.search(queries, count)
        for rows in found:
            yield np.sort(rows[rows >= 0]).astype(np.int64)


def has_hnsw(folder: Path) -> bool:
    """Whether a graph lies beside the index in a folder."""
    return (folder / HNSW / ABOUT).is_file()


def read_about(folder: Path) -> About | None:
    """What is known of the graph beside an index; None where there is none."""
    file = folder / HNSW / ABOUT
    if not file.is_file():
        return None
    try:
        return About.parse(read_mapping(file), where=str(file))
    except (UnreadableError, SettingsError) as error:
        raise damaged(file, getattr(error, "what", str(error)), folder) from None


def check_graph(folder: Path, about: About) -> None:
    """Refuses the graph beside an index whose file is not what was written."""
    fix = f"{building_command(folder, about.settings)} builds it again"
    check(folder / HNSW, {about.file: about.stored}, folder, fix)


def building_command(folder: Path, settings: HnswSettings) -> str:
    """The command that builds a graph beside an index, whatever became of the index."""
    chosen = settings.model_dump(exclude_defaults=True)
    flags = [f"--set hnsw.{key}={value}" for key, value in chosen.items()] or ["--set hnsw=true"]
    return " ".join(["isthmus sync", shlex.quote(str(folder)), "DOCUMENTS --compact", *flags])


def not_there(folder: Path) -> InputError:
    """The refusal to search by a graph that an index does not have."""
    return InputError(
        f"hnsw: the index {str(folder)!r} has no hnsw graph",
        f"leave hnsw out, or build it: {building_command(folder, HnswSettings())}",
    )


def sampled_rows(count: int) -> Rows:
    """Rows of documents from all over an index, whose texts or vectors serve as queries."""
    return np.unique(np.linspace(0, count - 1, _QUERIES).astype(np.int64))


def import_faiss(needed_for: str) -> Any:
    """The package faiss, or what to install."""
    with needing("faiss", extra="ann", needed_for=needed_for):
        import faiss
    return faiss


def fingerprint(manifest: Manifest) -> str:
    """A fingerprint of all files of an index, from which a graph was made."""
    files = sorted((name, stored.xxh3) for name, stored in manifest.files.items())
    return xxhash.xxh3_128(repr(files).encode()).hexdigest()
