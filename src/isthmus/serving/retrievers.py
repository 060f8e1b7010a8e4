"""The retrievers that a server has by name: every index, hybrids of them, and one re-ranked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from isthmus.config.cache import cache_folder
from isthmus.config.models import full_name
from isthmus.errors import MismatchError
from isthmus.indexes.manifest import HYBRID, MANIFEST, stated_manifest
from isthmus.progress import waiting
from isthmus.records import Document
from isthmus.retrieval.hybrid import HybridSearcher, Retriever
from isthmus.retrieval.hybrid_folder import index_folder, is_hybrid, open_hybrid, read_hybrid
from isthmus.retrieval.reranker import check_texts
from isthmus.retrieval.searcher import Searcher, open_searcher
from isthmus.serving.settings import ServeSettings
from isthmus.serving.timing import QueryVectors, TimedReranker, TimedSearcher

if TYPE_CHECKING:
    from isthmus.retrieval.reranker import Scorer
    from isthmus.retrieval.searcher import Encoder

Type = Literal["bm25", "dense", "sparse", "hybrid", "reranked"]
_TYPES: dict[str, Type] = {"inverted": "sparse"}  # of indexes, where the word differs
_INSIDE = ("final", "best", "model")  # model folders of runs: the run's name identifies them
Stamp = tuple[tuple[int, int, int] | None, ...]
"""What tells one state of index folders from the next."""


@dataclass(frozen=True)
class ServedRetriever:
    """A retriever under its name, with its type and the name of its model."""

    name: str
    type: Type
    model: str | None
    retriever: Retriever


class Retrievers:
    """All that is open at one moment; requests that began with it end with it."""

    def __init__(
        self,
        place: Path,
        served: Sequence[ServedRetriever],
        default: ServedRetriever,
        stamp: Stamp,
    ) -> None:
        """The default one answers requests that name none; `place` is the first index."""
        self._place = place
        self.by_name = {one.name: one for one in served}
        self.default = default.name
        self.stamp = stamp
        singles = [one.retriever for one in served if isinstance(one.retriever, Searcher)]
        self._texts = next((one for one in singles if one.keeps_texts), singles[0])
        self.documents = len(singles[0].index)
        self.keeps_texts = self._texts.keeps_texts

    @property
    def source(self) -> str:
        """The name of the documents that were indexed, without where they are."""
        spec = self._texts.index.manifest.corpus.spec
        if Path(spec).is_relative_to(cache_folder()):  # of documents that a program held
            return self._place.stem
        return spec if ":" in spec else Path(spec).stem

    def document(self, document_id: str) -> Document | None:
        """The whole document of this id, from an index that keeps texts where there is one."""
        return self._texts.whole(document_id)

    def every(self) -> Iterator[Document]:
        """Every document, whole."""
        store = self._texts.index.store
        for row in range(len(store)):
            found = self._texts.whole(store.id(row))
            assert found is not None
            yield found


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
        self.folders = [index_folder(folder).absolute() for folder in folders]
        self._settings = settings
        self._encoders: dict[str, Encoder] = {}
        self._vectors: dict[str, QueryVectors] = {}  # by fingerprints of encoders
        self._scorer: Scorer | None = None

    def stamp(self) -> Stamp:
        """What the folders hold now, without reading it."""
        return tuple(_stamp(one / name) for one in self.folders for name in (MANIFEST, HYBRID))

    def open(self) -> Retrievers:
        """Everything as it is now; indexes of other documents than the first one's are refused."""
        stamp = self.stamp()  # before: what changes meanwhile is seen by the next check
        members = [_members(folder) for folder in self.folders]  # before any weights are loaded
        singles: dict[str, Searcher] = {}
        hybrids: dict[str, HybridSearcher] = {}
        hnsw, model = self._settings.hnsw, self._settings.model
        model = None if model is None else full_name(model)  # as for folders
        first: tuple[Path, Searcher] | None = None
        for folder, kinds in zip(self.folders, members, strict=True):
            if is_hybrid(folder):
                hybrid = open_hybrid(folder, hnsw, encoders=self._encoders, model=model)
                opened = [self._timed(cast(Searcher, one)) for one in hybrid.searchers]
                hybrids[_free("hybrid", singles, hybrids)] = type(hybrid)(
                    opened, hybrid.fusion, hybrid.weights, hybrid.candidates
                )
            else:
                graph = hnsw and "dense" in kinds.values()
                one = open_searcher(folder, model, graph, encoders=self._encoders)
                opened = [self._timed(one)]
            first = first or (folder, opened[0])
            _check_same(*first, folder, opened[0])
            for name, searcher in zip(kinds, opened, strict=True):
                singles[_free(name, singles, hybrids)] = searcher
        self._forget_all_but(singles.values())
        served = [_single(name, one) for name, one in singles.items()]
        served += [ServedRetriever(name, "hybrid", None, one) for name, one in hybrids.items()]
        default = served[-1] if hybrids else served[0]
        if self._settings.rerank is not None:
            default = self._reranked(_free("reranked", singles, hybrids), default.retriever)
            served.append(default)
        return Retrievers(self.folders[0], served, default, stamp)

    def _timed(self, searcher: Searcher) -> TimedSearcher:
        encoder, vectors = searcher.encoder, None
        if encoder is not None:
            new = QueryVectors(encoder.encode_queries, self._settings.remembered)
            vectors = self._vectors.setdefault(encoder.fingerprint, new)
        return TimedSearcher(searcher, vectors)

    def _forget_all_but(self, searchers: Iterable[Searcher]) -> None:
        """Lets go of encoders that indexes of before had."""
        used = {one.index.manifest.encoder_fingerprint for one in searchers}
        self._vectors = {key: one for key, one in self._vectors.items() if key in used}
        self._encoders = {k: one for k, one in self._encoders.items() if one.fingerprint in used}

    def _reranked(self, name: str, retriever: Retriever) -> ServedRetriever:
        chosen = self._settings.rerank
        assert chosen is not None
        check_texts(retriever)
        if self._scorer is None:
            with waiting(f"loading the re-ranker {chosen.model}"):
                from isthmus.encoders import load_reranker

                self._scorer = load_reranker(chosen.model, where="--rerank")
        served = TimedReranker(retriever, self._scorer, chosen.candidates)
        return ServedRetriever(name, "reranked", model_name(chosen.model), served)


def _single(name: str, searcher: Searcher) -> ServedRetriever:
    kind = searcher.index.manifest.kind
    model = None if searcher.encoder is None else model_name(searcher.encoder.name)
    return ServedRetriever(name, _TYPES.get(kind, cast(Type, kind)), model, searcher)


def _members(folder: Path) -> dict[str, str]:
    """The types of the indexes in a folder, by their names."""
    if not is_hybrid(folder):
        return {folder.resolve().name: stated_manifest(folder).kind}
    places = read_hybrid(folder).folders(folder)
    return {place.name: stated_manifest(place).kind for place in places}


def _check_same(place: Path, first: Searcher, other_place: Path, other: Searcher) -> None:
    if not first.has_same_documents(other):
        specs = [one.index.manifest.corpus.spec for one in (first, other)]
        raise MismatchError(
            f"the indexes hold different documents: {str(place)!r} has {len(first.index):,} of "
            f"{specs[0]!r}, {str(other_place)!r} has {len(other.index):,} of {specs[1]!r}",
            "serve each by itself, on a port of its own, or index the same documents for both",
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
