"""Which indexes in one folder answer together, and how; they change together (living_hybrid.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from isthmus.config import Settings
from isthmus.config.safe_names import plain
from isthmus.config.sealed_json import UnreadableError, read_mapping
from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.indexes.integrity import damaged
from isthmus.indexes.manifest import HYBRID, MANIFEST, STATE, stated_manifest
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


class Member(Settings):
    """An index of a hybrid by its name in the folder, and the encoder that filled it."""

    index: Annotated[str, AfterValidator(plain)]
    encoder: str | None


class Hybrid(Settings):
    """The contents of hybrid.json: indexes, how they are fused, and the folder they are in."""

    members: Annotated[list[Member], Field(min_length=1)]
    combination: Combination
    state: Annotated[str, Field(pattern=f"^{STATE}$")]

    def folders(self, place: Path) -> list[Path]:
        """The folders of its indexes, if the hybrid is at `place`."""
        return [Path(place, self.state, member.index) for member in self.members]


def index_folder(folder: str | Path) -> Path:
    """The folder itself, or the index in it where it is the output of `adapt`."""
    inside = Path(folder, "index")
    for place in (Path(folder), inside):
        if (place / MANIFEST).is_file() or (place / HYBRID).is_file():
            return place
    return Path(folder)


def is_hybrid(folder: str | Path) -> bool:
    """Whether a folder holds several indexes that change together."""
    return (Path(folder) / HYBRID).is_file()


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
    model: str | None = None,
) -> HybridSearcher:
    """The hybrid in a folder; an index that has another encoder since is refused.

    `changed` is what differs from its combination. A writer may replace the indexes while
    they are opened; then they are opened again. `encoders` are as in `open_searcher`, and `model`
    is where the encoder is now, if it was moved.
    """
    while True:
        hybrid = read_hybrid(Path(folder))
        try:
            return _open_hybrid(Path(folder), hybrid, hnsw, changed or {}, by, encoders, model)
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
    model: str | None,
) -> HybridSearcher:
    file = folder / HYBRID
    searchers = open_together(hybrid.folders(folder), model, hnsw, by, encoders)
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
    """A searcher per index of one corpus, each with the encoder at `model` where that is given.

    `hnsw` is for the dense ones, one at least; the others are searched exactly. `encoders` are as
    in `open_searcher`.
    """
    dense = [stated_manifest(Path(folder)).kind == "dense" for folder in folders]
    graphs = [hnsw and (one or not any(dense)) for one in dense]
    first, *others = folders
    searchers = [open_searcher(first, model, graphs[0], by, encoders)]
    for folder, chosen in zip(others, graphs[1:], strict=True):
        searchers.append(open_searcher(folder, model, chosen, by, encoders))
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
    """Which retrievers answer, with which encoder, how they are fused, and a re-ranker."""

    use: str | None = Field(
        None, description="name of the one retriever that answers; null: all of them, fused"
    )
    model: str | None = Field(
        None,
        description="path of the encoder, if it is not where the index was built, or to allow one "
        "that this machine has not used before",
    )
    hnsw: bool = Field(
        False,
        description="search a dense index by the graph that `index` built beside it, which may "
        "miss documents",
    )
    rerank: RerankSettings | None = Field(
        None, description="a cross-encoder that reads the best once more"
    )
