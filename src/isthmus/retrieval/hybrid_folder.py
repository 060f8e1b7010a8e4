"""Which indexes answer together and how: given with a search, or kept in a folder by `tune`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from isthmus.config import Settings
from isthmus.config.names import plain
from isthmus.config.sealed_json import UnreadableError, read_mapping
from isthmus.config.trust import is_trusted_index, trust_index
from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.indexes.backends import suits
from isthmus.indexes.integrity import damaged
from isthmus.indexes.manifest import stated_manifest
from isthmus.progress import notice
from isthmus.retrieval.cascade import CascadeSearcher
from isthmus.retrieval.hybrid import HybridSearcher
from isthmus.retrieval.searcher import Searcher, open_searcher

if TYPE_CHECKING:
    from isthmus.indexes.approximation import Backend

HYBRID = "hybrid.json"


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
    """The contents of hybrid.json: indexes and weights that `isthmus tune` found."""

    members: Annotated[list[Member], Field(min_length=1)]
    combination: Combination


def is_hybrid(folder: str | Path) -> bool:
    """Whether a folder is what `isthmus tune` wrote."""
    return (Path(folder) / HYBRID).is_file()


def read_hybrid(folder: Path) -> Hybrid:
    """The hybrid that `isthmus tune` wrote into a folder."""
    file = folder / HYBRID
    try:
        return Hybrid.parse(read_mapping(file), where=str(file))
    except (UnreadableError, SettingsError) as error:
        raise damaged(file, getattr(error, "what", str(error)), folder) from None


def open_hybrid(folder: str | Path, backend: Backend = "numpy") -> HybridSearcher:
    """The tuned hybrid in a folder; an index that has another encoder since is refused.

    `hybrid.json` may come from another machine: an index outside the folder is read only if it was
    built or opened here before, and a notice names it.
    """
    file = Path(folder) / HYBRID
    hybrid = read_hybrid(Path(folder))
    indexes = [Path(folder, member.index) for member in hybrid.members]
    if outside := [each.index for each in hybrid.members if Path(each.index).is_absolute()]:
        for index in outside:
            _check_known(index, file)
        notice(f"{folder}: reading its indexes {', '.join(outside)}")
    searchers = open_together(indexes, backend=backend)
    for member, searcher in zip(hybrid.members, searchers, strict=True):
        if (found := fingerprint(searcher)) != member.encoder:
            raise MismatchError(
                f"the index {member.index!r} was filled by another encoder since the weights were "
                "tuned",
                where=str(file),
                allowed="the indexes that the weights were tuned for (here with the encoder of "
                f"fingerprint {member.encoder}, not {found})",
                remedy="run `isthmus tune` again: weights of another encoder mean nothing",
            )
    return hybrid.combination.searcher(searchers)


def _check_known(index: str, file: Path) -> None:
    """Refuses an index that this user has not built or opened before."""
    if not is_trusted_index(index):
        raise InputError(
            f"the hybrid reads the index {index!r}, which has not been used here before",
            where=str(file),
            allowed="indexes that were built or searched on this machine, or inside the hybrid's "
            "folder",
            remedy="if you trust it, search it once: "
            + shlex.join(("isthmus", "search", index, "QUERY")),
        )


def open_together(
    folders: Sequence[str | Path], model: str | None = None, backend: Backend = "numpy"
) -> list[Searcher]:
    """A searcher per index, the first one with the encoder at `model`; all of one corpus.

    The backend is for the indexes of its kind, one at least; the others are searched exactly. All
    are remembered as opened by this user.
    """
    suited = [suits(backend, stated_manifest(Path(folder)).kind) for folder in folders]
    backends = [backend if suit or not any(suited) else "numpy" for suit in suited]
    first, *others = folders
    searchers = [open_searcher(first, model, backends[0])]
    for folder, chosen in zip(others, backends[1:], strict=True):
        searchers.append(open_searcher(folder, backend=chosen))
        if not searchers[0].has_same_documents(searchers[-1]):
            raise MismatchError(
                f"{str(first)!r} and {str(folder)!r} hold different documents",
                where=str(folder),
                allowed="indexes of one corpus",
                remedy="index the same corpus for each of them",
            )
    for folder in folders:
        trust_index(folder)
    return searchers


def fingerprint(searcher: Searcher) -> str | None:
    """The fingerprint of the encoder that filled its index; None for BM25."""
    origin = searcher.index.manifest.encoder
    return origin.fingerprint if origin is not None else None
