"""What approximations of all kinds of indexes have in common.

An approximation finds documents without scoring all of them, and may miss some. It lies in a
folder of its own, named after it, inside the folder of the index that it was made of, and can be
deleted at any time.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, get_args

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import Field, model_validator

from isthmus.config import Settings
from isthmus.config.output import write_json
from isthmus.config.safe_names import PlainName
from isthmus.config.sealed_json import UnreadableError, read_mapping, sealed
from isthmus.errors import InputError, SettingsError
from isthmus.indexes.integrity import Count, StoredFile, check, damaged, described
from isthmus.indexes.manifest import Manifest

if TYPE_CHECKING:
    from isthmus.indexes.index import VectorIndex

Approximation = Literal["hnsw", "ivf", "seismic"]
Backend = Literal["numpy", "faiss", "hnsw", "ivf", "seismic"]
Asked = Literal["all at once", "one at a time"]
Rows = npt.NDArray[np.int64]
ABOUT = "approximate.json"
_NAMES: tuple[Approximation, ...] = get_args(Approximation)
_QUERIES = 200  # that an approximation is measured with
_OWN: dict[str, tuple[Approximation, ...]] = {
    "neighbours": ("hnsw",),
    "construction": ("hnsw",),
    "lists": ("ivf",),
    "effort": ("hnsw", "ivf"),
    "oversampling": ("hnsw", "ivf"),
    "postings": ("seismic",),
    "clusters": ("seismic",),
    "energy": ("seismic",),
    "query_terms": ("seismic",),
    "heap_factor": ("seismic",),
}  # settings that mean something to some approximations only


class ApproximationSettings(Settings):
    """How documents are found without scoring all of them: more of anything finds more."""

    name: Approximation = Field(
        "hnsw", description="dense: hnsw, a graph of neighbours, or ivf, lists; sparse: seismic"
    )
    neighbours: int = Field(32, ge=2, description="hnsw: links of a vector")
    construction: int = Field(200, ge=1, description="hnsw: vectors met while one is placed")
    lists: int | None = Field(None, ge=1, description="ivf: how many; null: by the corpus's size")
    effort: int = Field(128, ge=1, description="vectors (hnsw) or lists (ivf) met while searching")
    oversampling: int = Field(
        2, ge=1, description="hnsw, ivf: candidates scored exactly for every answer"
    )
    postings: int = Field(3500, ge=1, description="seismic: kept per term, on average")
    clusters: float = Field(0.1, gt=0, le=1, description="seismic: per posting of a term")
    energy: float = Field(
        0.4, gt=0, le=1, description="seismic: share of a cluster's weights summarised"
    )
    query_terms: int = Field(
        20, ge=1, description="seismic: the strongest of a query, which are looked up"
    )
    heap_factor: float = Field(
        0.8,
        gt=0,
        le=1,
        description="seismic: clusters below the worst answer by more than this are left out; "
        "less finds more",
    )

    @model_validator(mode="after")
    def _check_owners(self) -> ApproximationSettings:
        for setting, owners in _OWN.items():
            usual = ApproximationSettings.model_fields[setting].default
            if self.name not in owners and getattr(self, setting) != usual:
                raise ValueError(
                    f"{setting} is a setting of {' and '.join(owners)}, not of {self.name}"
                )
        return self


class About(Settings):
    """What an approximation was made of, and how much of the exact answers it finds."""

    settings: ApproximationSettings
    made_of: str
    file: PlainName
    bytes: Count
    xxh3: str | None = None
    depths: list[int]
    recall: list[float]
    speedup: list[float]
    queries: int
    asked: Asked

    def summary(self) -> str:
        """Its recall and speed in one line."""
        found = (
            f"{recall:.1%} of the {depth:,} nearest documents, {speedup:,.1f} times as fast as "
            "exact search"
            for depth, recall, speedup in zip(self.depths, self.recall, self.speedup, strict=True)
        )
        return (
            f"{self.settings.name}: finds {'; '.join(found)} ({self.queries:,} queries, "
            f"{self.asked})"
        )


def is_approximate(backend: Backend) -> TypeGuard[Approximation]:
    """Whether a backend needs an approximation beside the index."""
    return backend in _NAMES


def approximations(folder: Path) -> list[Approximation]:
    """The names of the approximations beside an index."""
    return [name for name in _NAMES if (folder / name / ABOUT).is_file()]


def read_about(folder: Path, name: str) -> About | None:
    """What is known of an approximation; None where there is none."""
    file = folder / name / ABOUT
    if not file.is_file():
        return None
    try:
        return About.parse(read_mapping(file), where=str(file))
    except (UnreadableError, SettingsError) as error:
        raise damaged(file, getattr(error, "what", str(error)), folder) from None


def write_about(folder: Path, about: About) -> None:
    """Writes the settings and measurements of an approximation beside it."""
    write_json(folder / ABOUT, sealed(about.model_dump()))


def same_about(folder: Path, settings: ApproximationSettings, manifest: Manifest) -> About | None:
    """What is known of an approximation with these settings; None where it has to be built."""
    about = read_about(folder, settings.name)
    made_of = fingerprint(manifest)
    if about is None or (about.settings, about.made_of) != (settings, made_of):
        return None
    try:
        check_approximation(folder, about)
    except InputError:
        return None
    return about


def check_approximation(folder: Path, about: About) -> None:
    """Refuses the approximation beside an index whose file is not what was written."""
    place = folder / about.settings.name
    remedy = f"{building_command(folder, about.settings)} builds it again"
    if about.xxh3 is not None:
        check(place, {about.file: StoredFile(bytes=about.bytes, xxh3=about.xxh3)}, folder, remedy)
    elif not (file := place / about.file).is_file() or file.stat().st_size != about.bytes:
        why = f"it has not the {about.bytes:,} bytes that were written"
        raise damaged(file, why, folder, remedy)


def building_command(folder: Path, settings: ApproximationSettings) -> str:
    """The command that builds an approximation beside an index, whatever became of the index."""
    chosen = {"name": settings.name, **settings.model_dump(exclude_defaults=True)}
    flags = (f"--set approximate.{key}={value}" for key, value in chosen.items())
    return " ".join(["isthmus merge", str(folder), *flags])


def fingerprint(manifest: Manifest) -> str:
    """A fingerprint of all files of an index, from which an approximation was made."""
    files = sorted((name, stored.xxh3) for name, stored in manifest.files.items())
    return xxhash.xxh3_128(repr(files).encode()).hexdigest()


def sampled_rows(count: int) -> Rows:
    """Rows of documents from all over an index, whose texts or vectors serve as queries."""
    return np.unique(np.linspace(0, count - 1, _QUERIES).astype(np.int64))


def measured(
    settings: ApproximationSettings,
    file: Path,
    exact: VectorIndex,
    near: VectorIndex,
    queries: Any,
    asked: Asked,
) -> About:
    """The recall and speed of an approximation in a file, measured with these queries."""
    count = queries.shape[0]
    size = count if asked == "all at once" else 1
    blocks = [queries[start : start + size] for start in range(0, count, size)]
    names = [str(number) for number in range(size)]
    documents = exact.manifest.documents
    depths = [depth for depth in (10, 1000) if depth <= documents] or [documents]
    recall, speedup = [], []
    for depth in depths:
        found, seconds = [], []
        for index in (exact, near):
            index.find(queries[:1], depth, names[:1])  # warm-up
            began = time.perf_counter()
            found.append([rows for block in blocks for rows, _ in index.find(block, depth, names)])
            seconds.append(time.perf_counter() - began)
        shares = [
            len(np.intersect1d(right, rows)) / len(right)
            for right, rows in zip(*found, strict=True)
            if len(right)
        ]
        recall.append(float(np.mean(shares)) if shares else 1.0)
        speedup.append(seconds[0] / seconds[1])
    return About(
        settings=settings,
        made_of=fingerprint(exact.manifest),
        file=file.name,
        **described(file.parent, [file.name])[file.name].model_dump(),
        depths=depths,
        recall=recall,
        speedup=speedup,
        queries=count,
        asked=asked,
    )
