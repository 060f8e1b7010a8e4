"""The retrievers that a server has by name: every field, all of them fused, and one re-ranked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.config.cache import cache_folder
from isthmus.config.models import full_name
from isthmus.errors import InputError
from isthmus.indexes.documents import blocks
from isthmus.indexes.filters import Filter, parse, parse_text
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import MANIFEST, index_folder
from isthmus.progress import waiting
from isthmus.records import Document
from isthmus.retrieval.searcher import Retriever, load_encoders
from isthmus.serving.errors import RefusalError
from isthmus.serving.messages import Type
from isthmus.serving.settings import ServeSettings
from isthmus.serving.timing import QueryVectors, TimedReranker, TimedSearcher

if TYPE_CHECKING:
    from isthmus.retrieval.reranker import Scorer
    from isthmus.retrieval.searcher import Encoder

_INSIDE = ("final", "best", "model")  # model folders of runs: the run's name identifies them
_BLOCK = 1024  # documents
Stamp = tuple[int, int, int] | None
"""What tells one state of an index folder from the next."""


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
        self, index: Index, served: Sequence[ServedRetriever], default: str, stamp: Stamp
    ) -> None:
        """The default one answers requests that name none."""
        self.index = index
        self.by_name = {one.name: one for one in served}
        self.default = default
        self.stamp = stamp

    @property
    def source(self) -> str:
        """The name of the documents that were indexed, without where they are."""
        spec = self.index.manifest.corpus.spec
        if Path(spec).is_relative_to(cache_folder()):  # of documents that a program held
            return self.index.folder.stem
        return spec if ":" in spec else Path(spec).stem

    def every(self) -> Iterator[Document]:
        """Every document, whole."""
        for ids in blocks(self.index.ids(), _BLOCK):
            yield from self.index.documents(ids)

    def filter(self, given: str | Mapping[str, Any] | None) -> Filter | None:
        """The filter that a request spells; refused unless it fits the documents."""
        if not given:
            return None
        try:
            found = parse_text(given) if isinstance(given, str) else parse(given)
            return found.check(self.index.metadata)
        except InputError as error:  # of the request: nothing of it is a place on this machine
            raise RefusalError(422, error.what, error.fix, error.expected) from None


def model_name(model: str) -> str:
    """A model's name for clients: of a folder its own name without the path, RUN/final of a run."""
    place = Path(model)
    if not (place.is_absolute() or place.is_dir()):
        return model
    place = place.absolute()
    return f"{place.parent.name}/{place.name}" if place.name in _INSIDE else place.name


class Opening:
    """Opens the folder of a server again and again; encoders are loaded once."""

    def __init__(self, folder: str | Path, settings: ServeSettings) -> None:
        # Absolute, so that paths in errors are absolute too: refusals removes those from answers.
        self.folder = index_folder(folder).absolute()
        self._settings = settings
        self._encoders: dict[str, Encoder] = {}
        self._vectors: dict[int, QueryVectors] = {}  # by encoder
        self._scorer: Scorer | None = None

    def stamp(self) -> Stamp:
        """What the folder holds now, without reading it."""
        try:
            found = (self.folder / MANIFEST).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def open(self) -> Retrievers:
        """Everything as it is now, with all that searches, filters and explanations will read."""
        stamp = self.stamp()  # before: what changes meanwhile is seen by the next check
        model = self._settings.model
        index = Index.open(self.folder, graph=self._settings.hnsw)
        fields = index.manifest.fields
        named = None if model is None else full_name(model)
        encoders = load_encoders(index, fields, named, self._encoders)
        vectors = self._remembered(encoders)
        served = [
            ServedRetriever(
                name,
                field.type,
                model_name(encoders[name].name) if name in encoders else None,
                TimedSearcher(index, encoders, vectors, (name,)),
            )
            for name, field in fields.items()
        ]
        fused = TimedSearcher(index, encoders, vectors)
        default = next(one for one in served if one.name == fused.fields[0])
        if len(fused.fields) > 1:
            default = ServedRetriever(_free("fused", fields), "fused", None, fused)
            served.append(default)
        if self._settings.rerank is not None:
            default = self._reranked(_free("reranked", fields), default.retriever)
            served.append(default)
        return Retrievers(index, served, default.name, stamp)

    def _remembered(self, encoders: Mapping[str, Encoder]) -> dict[str, QueryVectors]:
        """What keeps the vectors of queries, by field; encoders of before are let go."""
        used = {id(one): one for one in encoders.values()}
        known = {one.fingerprint for one in used.values()}
        self._encoders = {
            key: one for key, one in self._encoders.items() if one.fingerprint in known
        }
        most = self._settings.remembered
        self._vectors = {
            key: self._vectors.get(key) or QueryVectors(one.encode_queries, most)
            for key, one in used.items()
        }
        return {name: self._vectors[id(one)] for name, one in encoders.items()}

    def _reranked(self, name: str, retriever: Retriever) -> ServedRetriever:
        chosen = self._settings.rerank
        assert chosen is not None
        if self._scorer is None:
            with waiting(f"loading the re-ranker {chosen.model}"):
                from isthmus.encoders import load_reranker

                self._scorer = load_reranker(chosen.model, where="--rerank")
        served = TimedReranker(retriever, self._scorer, chosen.candidates)
        return ServedRetriever(name, "reranked", model_name(chosen.model), served)


def _free(name: str, taken: Mapping[str, object]) -> str:
    """The name, or one like it that no field has."""
    return name if name not in taken else _free(f"{name}-2", taken)
