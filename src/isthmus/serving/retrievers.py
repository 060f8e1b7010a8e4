"""The retrievers that a server offers by name: every index, their hybrid, and that re-ranked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from isthmus.config.models import full_name
from isthmus.errors import MismatchError
from isthmus.indexes.manifest import HYBRID, MANIFEST
from isthmus.progress import waiting
from isthmus.records import Document
from isthmus.retrieval.hybrid import HybridSearcher, Retriever
from isthmus.retrieval.hybrid_folder import is_hybrid, open_hybrid, open_together, read_hybrid
from isthmus.retrieval.reranker import RerankingSearcher, check_texts
from isthmus.retrieval.searcher import Searcher
from isthmus.serving.settings import ServeSettings
from isthmus.serving.stages import RememberingEncoder, TimedScorer

if TYPE_CHECKING:
    from isthmus.retrieval.searcher import Encoder

Kind = Literal["bm25", "dense", "sparse", "hybrid", "reranked"]
_KINDS: dict[str, Kind] = {"inverted": "sparse"}  # by kinds of index, where the word differs
_INSIDE = (
    "final",
    "best",
    "model",
)  # model folders that every run has: the run's name identifies them
Stamp = tuple[tuple[int, int, int] | None, ...]
"""What tells one state of index folders from the next."""


@dataclass(frozen=True)
class Offer:
    """A retriever under its name: to be searched, and as it is where it is to be explained."""

    name: str
    kind: Kind
    model: str | None
    retriever: Retriever
    plain: Retriever


class Retrievers:
    """All that is open at one moment; requests that began with it end with it."""

    def __init__(self, offers: Sequence[Offer], first: Searcher, stamp: Stamp) -> None:
        self.by_name = {offer.name: offer for offer in offers}
        self.default = offers[-1].name
        self.stamp = stamp
        self._first = first

    @cached_property
    def documents(self) -> int:
        """How many documents there are."""
        return len(self._first.index)

    @cached_property
    def _keeping(self) -> Searcher:
        singles = [one.plain for one in self.by_name.values() if isinstance(one.plain, Searcher)]
        return next((one for one in singles if one.keeps_texts), self._first)

    def document(self, document_id: str) -> Document | None:
        """The whole document of this id, from an index that keeps texts where there is one."""
        return self._keeping.whole(document_id)

    def every(self) -> Iterator[Document]:
        """Every document, whole."""
        store = self._keeping.index.store
        for row in range(len(store)):
            found = self._keeping.whole(store.id(row))
            assert found is not None
            yield found

    @property
    def keeps_texts(self) -> bool:
        """Whether any of the indexes has the texts of its documents."""
        return self._keeping.keeps_texts

    @property
    def encoders(self) -> dict[str, Offer]:
        """The retrievers that have an encoder of their own."""
        return {name: one for name, one in self.by_name.items() if one.kind in ("dense", "sparse")}


def model_name(model: str) -> str:
    """A model's name for clients: of a folder its own name without the path, RUN/final of a run."""
    place = Path(model)
    if not (place.is_absolute() or place.is_dir()):
        return model
    place = place.absolute()
    return f"{place.parent.name}/{place.name}" if place.name in _INSIDE else place.name


class Opening:
    """Opens the folders of a server again and again; encoders are loaded once."""

    def __init__(self, folders: Sequence[str | Path], settings: ServeSettings) -> None:
        # Absolute, so that paths in errors are absolute too: refusals removes those from answers.
        self.folders = [Path(folder).absolute() for folder in folders]
        self._settings = settings
        self._encoders: dict[str, Encoder] = {}
        self._remembering: dict[str, RememberingEncoder] = {}
        self._scorer: TimedScorer | None = None

    def stamp(self) -> Stamp:
        """What the folders hold now, without reading it."""
        files = []
        for folder in self.folders:
            files += [folder / MANIFEST, folder / HYBRID]
            if is_hybrid(folder):
                files += [one / MANIFEST for one in read_hybrid(folder).folders(folder)]
        return tuple(map(_stamp, files))

    def open(self) -> Retrievers:
        """Everything as it is now; indexes of other documents than the first one's are refused."""
        stamp = self.stamp()  # before: what changes meanwhile is seen by the next look
        plain = [folder for folder in self.folders if not is_hybrid(folder)]
        chosen = self._settings
        singles: dict[str, Searcher] = {}
        fused: dict[str, HybridSearcher] = {}
        if plain:
            model = None if chosen.model is None else full_name(chosen.model)  # as for folders
            opened = open_together(plain, model, chosen.hnsw, encoders=self._encoders)
            for folder, searcher in zip(plain, opened, strict=True):
                singles[_free(folder.resolve().name, singles)] = searcher
        for folder in self.folders:
            if folder not in plain:
                hybrid = open_hybrid(folder, chosen.hnsw, encoders=self._encoders)
                for member, one in zip(read_hybrid(folder).members, hybrid.searchers, strict=True):
                    name = _free(Path(member.index).name, singles, fused)
                    singles[name] = cast(Searcher, one)
                fused[_free("hybrid", singles, fused)] = hybrid
        if len(plain) > 1:
            fused[_free("hybrid", singles, fused)] = chosen.searcher(opened)
        first, *others = singles.values()
        _check_same(first, others)
        self._forget_all_but(singles.values())
        offers = [self._single(name, one) for name, one in singles.items()]
        offers += [self._hybrid(name, one) for name, one in fused.items()]
        if chosen.rerank is not None:
            name = _free("reranked", singles, fused)
            offers.append(self._reranked(name, offers[-1]))
        return Retrievers(offers, first, stamp)

    def _forget_all_but(self, searchers: Iterable[Searcher]) -> None:
        """Lets go of encoders that indexes of before had."""
        used = {id(searcher.encoder) for searcher in searchers}
        self._encoders = {key: one for key, one in self._encoders.items() if id(one) in used}
        kept = {key: one for key, one in self._remembering.items() if key in self._encoders}
        self._remembering = kept

    def _single(self, name: str, searcher: Searcher) -> Offer:
        kind = searcher.index.manifest.kind
        model = None if searcher.encoder is None else model_name(searcher.encoder.name)
        served = self._remembered(searcher)
        return Offer(name, _KINDS.get(kind, cast(Kind, kind)), model, served, searcher)

    def _hybrid(self, name: str, hybrid: HybridSearcher) -> Offer:
        own = [self._remembered(cast(Searcher, one)) for one in hybrid.searchers]
        served = type(hybrid)(own, hybrid.fusion, hybrid.weights, hybrid.candidates)
        return Offer(name, "hybrid", None, served, hybrid)

    def _reranked(self, name: str, offer: Offer) -> Offer:
        chosen = self._settings.rerank
        assert chosen is not None
        check_texts(offer.retriever)
        if self._scorer is None:
            with waiting(f"loading the re-ranker {chosen.model}"):
                from isthmus.encoders import load_cross_encoder

                self._scorer = TimedScorer(load_cross_encoder(chosen.model, where="--rerank"))
        served = RerankingSearcher(offer.retriever, self._scorer, chosen.candidates)
        plain = RerankingSearcher(offer.plain, self._scorer.scorer, chosen.candidates)
        return Offer(name, "reranked", model_name(chosen.model), served, plain)

    def _remembered(self, searcher: Searcher) -> Searcher:
        """The searcher with an encoder that keeps vectors, the same one for all of its kind."""
        if searcher.encoder is None:
            return searcher
        key = next(key for key, one in self._encoders.items() if one is searcher.encoder)
        if key not in self._remembering:
            kept = RememberingEncoder(searcher.encoder, self._settings.remembered)
            self._remembering[key] = kept
        return Searcher(self._remembering[key], searcher.index)


def _check_same(first: Searcher, others: Sequence[Searcher]) -> None:
    if not all(map(first.has_same_documents, others)):
        raise MismatchError(
            "isthmus serve: the indexes hold different documents",
            "serve them one by one, or index the same corpus for each of them",
        )


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _free(name: str, *taken: Mapping[str, object]) -> str:
    """The name, or one like it that is not taken."""
    others = (f"{name}-{number}" for number in count(2))
    return next(one for one in chain([name], others) if not any(one in some for some in taken))
