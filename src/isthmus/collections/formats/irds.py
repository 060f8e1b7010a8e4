"""Data sets of ir_datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.metadata import version
from typing import Any

import xxhash

from isthmus.collections.collection import Collection, choose_split
from isthmus.collections.document_checks import screened, screened_queries
from isthmus.collections.formats import collection_format
from isthmus.collections.metadata import Others
from isthmus.collections.problems import Problems
from isthmus.errors import InputError, choices, needing
from isthmus.records import Document, Query

_TEXTS = ("text", "body", "abstract")


@collection_format("irds")
class Irds(Collection):
    """Data sets of ir_datasets by their ids; an id may name one split or their parent.

    A data set that ir_datasets knows, fetched by it when first read.
    """

    def __init__(self, identifier: str, problems: Problems | None = None) -> None:
        with needing("ir_datasets", extra="irds", needed_for=f"irds:{identifier}"):
            import ir_datasets
        self.identifier = identifier.strip("/")
        self._problems = problems or Problems()
        self._registry = ir_datasets.registry
        try:
            self._dataset = self._registry[self.identifier]
        except KeyError:
            raise InputError(
                f"ir_datasets knows no data set {self.identifier!r}",
                "choose one of these; `ir_datasets list` names them all",
                choices(self.identifier, self._registry),
            ) from None

    def documents(self) -> Iterator[Document]:
        """Every document in ir_datasets' order."""
        problems = self._problems.reading(f"irds:{self.identifier}")
        return screened(self._documents(), problems, f"irds:{self.identifier}")

    def queries(self) -> Iterator[Query]:
        """The queries of all splits, each once; of an id without judgements, its own."""
        found: dict[str, Query] = {}
        alone = {self.identifier: self._dataset} if self._dataset.has_queries() else {}
        for name, part in (self._parts or alone).items():
            source = f"irds:{self.identifier} queries of {name}"
            fetched = self._fetched(part.queries_iter)
            given = ((source, Query(each.query_id, each.default_text())) for each in fetched)
            found |= screened_queries(given, self._problems.reading(source), source)
        return iter(found.values())

    def splits(self) -> list[str]:
        """The last part of the id, or the ids below it that have judgements."""
        return sorted(self._parts)

    def judgements(self, split: str) -> dict[str, dict[str, int]]:
        """Relevance by query id and document id."""
        judgements: dict[str, dict[str, int]] = {}
        part = choose_split(self._parts, split, f"irds:{self.identifier}")
        for judged in self._fetched(part.qrels_iter):
            judgements.setdefault(judged.query_id, {})[judged.doc_id] = judged.relevance
        return judgements

    def answers(self, split: str) -> dict[str, list[str]]:
        """The strings that answer each query, of data sets such as dpr-w100."""
        part = choose_split(self._parts, split, f"irds:{self.identifier}")
        if not part.has_queries() or "answers" not in part.queries_cls()._fields:
            return {}
        return {each.query_id: list(each.answers) for each in self._fetched(part.queries_iter)}

    def fingerprint(self) -> str:
        """A digest of the id and the version of ir_datasets, which checks what it downloads."""
        return xxhash.xxh3_128_hexdigest(f"{self.identifier}\0{version('ir_datasets')}".encode())

    @cached_property
    def _parts(self) -> dict[str, Any]:
        if self._dataset.has_qrels():
            return {self.identifier.rpartition("/")[2]: self._dataset}
        below = f"{self.identifier}/"
        children = {n.removeprefix(below): n for n in self._registry if n.startswith(below)}
        found = {name: self._registry[full] for name, full in children.items()}
        return {name: part for name, part in found.items() if part.has_qrels()}

    def _documents(self) -> Iterator[tuple[str, Document]]:
        others = Others(f"irds:{self.identifier}", ("doc_id", "title", *_TEXTS))
        for number, record in enumerate(self._fetched(self._dataset.docs_iter), start=1):
            title = str(getattr(record, "title", "") or "")
            text = next((v for v in (getattr(record, k, None) for k in _TEXTS) if v), None)
            if text is None:  # many fields: ir_datasets knows which of them make up the text
                text, title = record.default_text(), ""
            where = f"irds:{self.identifier} document {number:,}"
            known = record._asdict() if hasattr(record, "_asdict") else {}
            yield where, Document(record.doc_id, text, title, metadata=others.of(known))
        others.tell()

    def _fetched(self, iterate: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """What ir_datasets gives; an InputError where it cannot fetch or read its files."""
        try:
            yield from iterate()
        except Exception as error:  # of the network, of archives, of whatever format it parses
            raise InputError(
                f"ir_datasets cannot provide {self.identifier!r}: {type(error).__name__}: {error}",
                "check the network; some data sets must be requested and put in place by hand",
            ) from error
