"""Which indexes answer together and how: given with a search, or kept in a folder.

`tune` writes such a folder with weights for indexes that lie elsewhere, `index --with` one that
holds the indexes themselves, which change together (living_hybrid.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from isthmus.config import Settings
from isthmus.config.safe_names import plain
from isthmus.config.sealed_json import UnreadableError, read_mapping
from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.indexes.integrity import damaged
from isthmus.indexes.manifest import HYBRID, STATE, stated_manifest
from isthmus.progress import notice
from isthmus.retrieval.hybrid import CascadeSearcher, HybridSearcher
from isthmus.retrieval.reranker import RerankSettings
from isthmus.retrieval.searcher import Encoder, Searcher, Unit, open_searcher

FIRST_STATE = "000001"


class FusionSettings(Settings):
    """What is fused, and how scores are made comparable."""

    fusion: str = Field("weighted_sum", description="weighted_sum, reciprocal_rank or raw_sum")
    pipeline: bool = Field(
        False, description="only the first index searches, the others score what it found"
    )
    candidates: int = Field(1000, ge=1, description="documents per query that are fused")


class Combination(FusionSettings):
    """How the answers of several indexes become one."""

    weights: list[float] | None = Field(None, description="one per index; null: all alike")

    def searcher(self, searchers: Sequence[Searcher]) -> HybridSearcher:
        """The searchers as one."""
        kind = CascadeSearcher if self.pipeline else HybridSearcher
        return kind(searchers, self.fusion, self.weights, self.candidates)


def _findable(index: str) -> str:
    """A path in full, as `tune` writes it: such an index is read, never changed.

    Any other is the name of an index inside the hybrid's own folder.
    """
    if "\0" in index or not Path(index).is_absolute():
        plain(index)
    return index


class Member(Settings):
    """An index of a hybrid, and the encoder it had when the weights were tuned."""

    index: Annotated[str, AfterValidator(_findable)]
    encoder: str | None


class Hybrid(Settings):
    """The contents of hybrid.json: indexes, and how their answers become one.

    A state is the folder, inside the hybrid's, of indexes that change together.
    """

    members: Annotated[list[Member], Field(min_length=1)]
    combination: Combination
    state: Annotated[str, Field(pattern=f"^{STATE}$")] | None = None

    def folders(self, place: Path) -> list[Path]:
        """Where its indexes lie, if the hybrid lies at `place`."""
        return [Path(place, self.state or "", member.index) for member in self.members]

    @model_validator(mode="after")
    def _holds_its_own(self) -> Hybrid:
        if self.state and any(Path(member.index).is_absolute() for member in self.members):
            raise ValueError("indexes that change together lie inside the folder")
        return self


def is_hybrid(folder: str | Path) -> bool:
    """Whether a folder is what `isthmus tune` or `isthmus index --with` wrote."""
    return (Path(folder) / HYBRID).is_file()


def is_living(folder: str | Path) -> bool:
    """Whether a folder holds several indexes that change together."""
    return is_hybrid(folder) and read_hybrid(Path(folder)).state is not None


def read_hybrid(folder: Path) -> Hybrid:
    """The hybrid that a folder holds."""
    file = folder / HYBRID
    try:
        return Hybrid.parse(read_mapping(file), where=str(file))
    except (UnreadableError, SettingsError) as error:
        raise damaged(file, getattr(error, "what", str(error)), folder) from None


def open_hybrid(
    folder: str | Path,
    hnsw: bool = False,
    changed: Mapping[str, Any] | None = None,
    by: Unit = "document",
    encoders: dict[str, Encoder] | None = None,
) -> HybridSearcher:
    """The hybrid in a folder; an index that has another encoder since is refused.

    `hybrid.json` may come from another machine: a notice names the indexes outside the folder that
    are read. `changed` is what differs from its combination. A writer may replace the indexes while
    they are opened; then they are opened again. `encoders` are as in `open_searcher`.
    """
    while True:
        hybrid = read_hybrid(Path(folder))
        try:
            return _open_hybrid(Path(folder), hybrid, hnsw, changed or {}, by, encoders)
        except (InputError, OSError):
            if read_hybrid(Path(folder)).state == hybrid.state:
                raise


def _open_hybrid(
    folder: Path,
    hybrid: Hybrid,
    hnsw: bool,
    changed: Mapping[str, Any],
    by: Unit,
    encoders: dict[str, Encoder] | None,
) -> HybridSearcher:
    file = folder / HYBRID
    if outside := [each.index for each in hybrid.members if Path(each.index).is_absolute()]:
        notice(f"{folder}: reading its indexes {', '.join(outside)}")
    folders = hybrid.folders(folder)
    searchers = open_together(folders, hnsw=hnsw, by=by, encoders=encoders)
    for member, searcher in zip(hybrid.members, searchers, strict=True):
        if (found := searcher.index.manifest.encoder_fingerprint) != member.encoder:
            raise MismatchError(
                f"{file}: the index {member.index!r} was filled by another encoder since the "
                f"weights were tuned (fingerprint {found}, not {member.encoder})",
                "run `isthmus tune` again",
            )
    return hybrid.combination.model_copy(update=changed).searcher(searchers)


def open_together(
    folders: Sequence[str | Path],
    model: str | None = None,
    hnsw: bool = False,
    by: Unit = "document",
    encoders: dict[str, Encoder] | None = None,
) -> list[Searcher]:
    """A searcher per index, the first one with the encoder at `model`; all of one corpus.

    `hnsw` is for the dense ones, one at least; the others are searched exactly. `encoders` are as
    in `open_searcher`.
    """
    dense = [stated_manifest(Path(folder)).kind == "dense" for folder in folders]
    graphs = [hnsw and (one or not any(dense)) for one in dense]
    first, *others = folders
    searchers = [open_searcher(first, model, graphs[0], by, encoders)]
    for folder, chosen in zip(others, graphs[1:], strict=True):
        searchers.append(open_searcher(folder, None, chosen, by, encoders))
        if not searchers[0].has_same_documents(searchers[-1]):
            raise MismatchError(
                f"{str(first)!r} and {str(folder)!r} hold different documents",
                "index the same corpus for each of them",
            )
        if by == "passage" and not searchers[0].has_same_passages(searchers[-1]):
            raise MismatchError(
                f"{str(first)!r} and {str(folder)!r} hold different passages",
                "count the tokens of one encoder for all: isthmus index --set "
                "passages.model=ENCODER; or leave by=passage out",
            )
    return searchers


class RetrieverSettings(Combination):
    """The first index's encoder and search, further indexes, their fusion, and a re-ranker."""

    hybrid: list[str] = Field([], description="further indexes, whose answers are fused in")
    model: str | None = Field(
        None,
        description="the encoder of the first index, if it moved or is not on this disk yet",
    )
    hnsw: bool = Field(
        False,
        description="search a dense index by the graph that `index` built beside it, which may "
        "miss documents",
    )
    rerank: RerankSettings | None = Field(
        None, description="a cross-encoder that reads the best once more"
    )
