"""An index as it was at one moment: the search of its fields, and its documents.

Segments never change, and what is mapped stays readable after a writer has removed its name. So an
index that was opened keeps what was there then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.indexes.columns import types_of
from isthmus.indexes.documents import Rows
from isthmus.indexes.fields import of_type
from isthmus.indexes.filters import Filter
from isthmus.indexes.manifest import (
    MANIFEST,
    Bm25Field,
    DenseField,
    Manifest,
    TokensField,
    read_manifest,
)
from isthmus.indexes.segment import Segment
from isthmus.indexes.vectors import Answer, Mask
from isthmus.records import Document, Passage, Ranking

if TYPE_CHECKING:
    from isthmus.indexes.tokens.codes import Asked, StoredTokens
    from isthmus.indexes.tokens.rarity import Rarity

Unit = Literal["document", "passage"]
"""What is ranked: documents, or the passages of a field that has these."""
Fields = Collection[str] | Callable[[Manifest], Collection[str]]
"""Names of fields, or what chooses them."""
_D = TypeVar("_D", bound=Document)
_DEEPER = 4  # times as many rows are searched where these may not be enough
_MORE = 1.2  # times as many rows as hold so many documents on average are searched first


class Batch(NamedTuple):
    """Rows of an index with their vectors, by field."""

    rows: list[Document]
    vectors: dict[str, Any]


class Products(NamedTuple):
    """The weight of each token of a query, and its product with each stored vector of a text.

    The score is the sum, over the tokens, of the weight times the largest product.
    """

    weights: npt.NDArray[np.float64]
    found: npt.NDArray[np.float32]


class Index:
    """What the folder of an index held at one moment."""

    def __init__(self, folder: Path, manifest: Manifest, graph: bool = False) -> None:
        self.folder = folder
        self.manifest = manifest
        self.segments = [Segment(folder, about, manifest) for about in manifest.segments]
        self._graph = graph
        self._bm25: dict[str, Any] = {}
        self._rarity: dict[str, Any] = {}

    @classmethod
    def open(cls, folder: Path, fields: Fields | None = None, graph: bool = False) -> Index:
        """The index in a folder with these of its fields, all if None; `graph`: by hnsw.

        A writer may replace the manifest and remove what only the old one named while files are
        being opened; then they are opened again.
        """
        while True:
            before = _text(folder)
            try:
                index = cls(folder, read_manifest(folder), graph)
                chosen = fields(index.manifest) if callable(fields) else fields
                index._load(index.manifest.fields if chosen is None else chosen)
            except Exception:
                if before == _text(folder):
                    raise
                continue
            if before == _text(folder):
                return index

    def __len__(self) -> int:
        return self.manifest.documents

    def has_passages(self, field: str) -> bool:
        """Whether the rows of a field are passages."""
        return self.manifest.has_passages(field)

    def has_tokens(self, field: str, text: str) -> bool:
        """Whether anything of a text is left to search a BM25 field for."""
        return bool(self.bm25(field).has_tokens(text))

    def search(
        self,
        field: str,
        queries: Any,
        depth: int,
        query_ids: Sequence[str],
        masks: Sequence[Mask] | None = None,
        by: Unit = "document",
    ) -> list[Ranking]:
        """The best documents of each query by one field, equal ones by id, with exact scores.

        Queries are texts for BM25, and a row of vectors each otherwise. A document that is cut
        scores as its best passage does (max-P); `by` passage, each is ranked by itself. The masks
        say of each segment which documents may be found.
        """
        assert depth > 0
        queries = self.asked(field, queries)
        masks = masks if masks is not None else [None] * len(self.segments)
        if by == "passage" and not self.has_passages(field):
            raise MismatchError(
                f"by = passage, but the field {field!r} holds complete documents",
                "leave by=passage out, or search fields of passages: use=FIELD",
            )
        if isinstance(self.manifest.field(field), Bm25Field):
            allowed = [
                one.spread(field, mask) for one, mask in zip(self.segments, masks, strict=True)
            ]
            found = self.bm25(field).answers(queries, depth, allowed)
            return self._rankings(found, query_ids, depth)
        if by == "document" and self._has_several(field):
            return self._by_documents(field, queries, depth, query_ids, masks)
        found, _ = self._nearest(field, queries, depth, query_ids, masks)
        order = _in_order if by == "passage" else None
        return self._rankings(found, query_ids, depth, self._naming(field, by), order)

    def asked(self, field: str, queries: Any) -> Any:
        """The queries as a field takes them, of what an encoder gives of them."""
        about = self.manifest.field(field)
        queries = of_type(about, queries)
        if not isinstance(about, TokensField):
            return queries
        from isthmus.indexes.tokens.rarity import weighed

        return weighed(queries, about, self.rarity(field))

    def rarity(self, field: str) -> Rarity:
        """How rare the word pieces of a field of token vectors are."""
        from isthmus.indexes.tokens.rarity import Rarity

        if field not in self._rarity:
            self._rarity[field] = Rarity.of(field, self.segments)
        found: Rarity = self._rarity[field]
        return found

    def scored(
        self,
        field: str,
        query: Any,
        ids: Sequence[str],
        by: Unit = "document",
        encode: Callable[[list[Document]], Any] | None = None,
    ) -> dict[str, float]:
        """These documents or passages by the token vectors of one query.

        A document that is cut scores as its best passage does; what has no tokens is left out.
        `encode` gives the token vectors of texts where the field stores none.
        """
        from isthmus.indexes.tokens.field import scores

        found = dict[str, float]()
        for about, asked, names, stored, rows in self._tokens_of(field, query, ids, by, encode):
            (values,) = scores(about, [asked], stored, rows)
            for name, value in zip(names, values.tolist(), strict=True):
                if value > -np.inf:
                    found[name] = max(value, found.get(name, value))
        return found

    def products(
        self,
        field: str,
        query: Any,
        ids: Sequence[str],
        encode: Callable[[list[Document]], Any] | None = None,
    ) -> dict[str, Products]:
        """Of each of these rows of a field, by id, what its score by one query is made of."""
        from isthmus.indexes.tokens.field import products

        found = dict[str, Products]()
        by: Unit = "passage" if self.has_passages(field) else "document"
        for about, asked, names, stored, rows in self._tokens_of(field, query, ids, by, encode):
            for name, row in zip(names, rows.tolist(), strict=True):
                found[name] = Products(asked.weights, products(about, asked, stored, row))
        return found

    def _tokens_of(
        self,
        field: str,
        query: Any,
        ids: Sequence[str],
        by: Unit,
        encode: Callable[[list[Document]], Any] | None,
    ) -> Iterator[tuple[TokensField, Asked, list[str], StoredTokens, Rows]]:
        """By segment, one query and the texts to compare: their ids, vectors and rows of these."""
        from isthmus.indexes.tokens.codes import compressed
        from isthmus.indexes.tokens.field import TokensSearch

        about = self.manifest.field(field)
        assert isinstance(about, TokensField)
        asked, prepared = self.asked(field, query), None
        for segment in self.segments:
            rows, names = segment.rows_of(field, ids, by)
            if not len(rows):
                continue
            search = segment.search(field)
            assert isinstance(search, TokensSearch)
            prepared = prepared or search.prepared(asked, ["query"])
            stored = search.stored
            if not about.settings.stored:
                assert encode is not None
                stored = compressed(about, of_type(about, encode(segment.texts(field, rows))))
                rows = np.arange(len(rows))
            yield about, prepared[0], names, stored, rows

    @cached_property
    def metadata(self) -> dict[str, str]:
        """The type of each field of the documents besides id, title and text."""
        return types_of(segment.columns for segment in self.segments)

    def masks(self, filter: Filter) -> list[Mask]:  # noqa: A002 (the word that users know)
        """Of each segment, which documents a filter lets through."""
        found = filter.check(self.metadata)
        return [found.mask(segment.columns) for segment in self.segments]

    def masks_of(self, ids: Collection[str]) -> list[Mask]:
        """Of each segment, which documents have one of these ids."""
        masks: list[Mask] = []
        for segment in self.segments:
            mask = np.zeros(len(segment), dtype=np.bool_)
            mask[segment.documents.rows(ids)] = True
            masks.append(mask)
        return masks

    def best_passages(self, field: str, queries: Any, ids: Sequence[str]) -> list[Passage]:
        """Of each of these documents the passage nearest to one query; the first where none is.

        The query is a batch of one, as `search` takes it; None: the first passages.
        """
        assert self.has_passages(field)
        found: dict[str, Passage] = {}
        nearest: list[Answer] = []
        if queries is not None:
            every = sum(one.about.passages or 0 for one in self.segments)
            (nearest,), _ = self._nearest(
                field, self.asked(field, queries), max(1, every), ["query"], self.masks_of(ids)
            )
        for number, segment in enumerate(self.segments):
            passages = segment.passages
            assert passages is not None
            wanted = [row for one in ids if (row := segment.row(one)) is not None]
            first = {row: int(passages.starts[row]) for row in wanted}
            if nearest:
                rows = nearest[number][0][::-1]  # the best last, so that it stays
                first |= dict(zip(passages.parents(rows).tolist(), rows.tolist(), strict=True))
            for one in passages.passages(np.array(list(first.values()), dtype=np.int64)):
                found[one.id.rpartition("#")[0]] = one
        return self.chosen(found, ids)

    def passages_of(self, document_id: str) -> list[Passage]:
        """All passages of a document, in their order; none of an unknown one."""
        if (found := self.row(document_id)) is None:
            return []
        segment, row = found
        assert segment.passages is not None
        return segment.passages.passages(segment.passages.of(np.array([row])))

    def row(self, document_id: str) -> tuple[Segment, int] | None:
        """The segment and row of a document; None if there is none of this id."""
        for segment in self.segments:
            if (row := segment.row(document_id)) is not None:
                return segment, row
        return None

    def document(self, document_id: str) -> Document | None:
        """The document of this id, whole, or None."""
        if (found := self.row(document_id)) is None:
            return None
        segment, row = found
        return segment.documents.documents(np.array([row]))[0]

    def documents(self, ids: Sequence[str]) -> list[Document]:
        """The documents of these ids, whole; an unknown one is refused."""
        found: dict[str, Document] = {}
        for segment in self.segments:
            rows = segment.documents.locate(ids)
            rows = rows[rows >= 0]
            rows = rows[segment.lives[rows]]
            found |= {one.id: one for one in segment.documents.documents(rows)}
        return self.chosen(found, ids)

    def ids(self) -> Iterator[str]:
        """The ids of all documents, in the order in which they came."""
        for segment in self.segments:
            yield from segment.documents.ids(np.flatnonzero(segment.lives))

    def batches(self, fields: Sequence[str]) -> Iterator[Batch]:
        """All rows of these fields, which have the same ones, with their vectors."""
        for segment in self.segments:
            yield from _batches(segment, fields)

    def bm25(self, field: str) -> Any:
        """The search of a BM25 field."""
        if field not in self._bm25:
            from isthmus.indexes.bm25.field import Bm25Search

            about = self.manifest.field(field)
            assert isinstance(about, Bm25Field)
            self._bm25[field] = Bm25Search(about, field, self.segments)
        return self._bm25[field]

    def chosen(self, found: Mapping[str, _D], ids: Sequence[str]) -> list[_D]:
        """What was found of these ids; an unknown one is refused."""
        for one in ids:
            if one not in found:
                raise InputError(
                    f"the index {str(self.folder)!r} has no document {one!r}",
                    "give ids that a search of this index returned",
                )
        return [found[one] for one in ids]

    def _load(self, fields: Collection[str]) -> None:
        """Opens what searches of these fields will read."""
        for segment in self.segments:
            assert len(segment.documents) == len(segment)
            assert segment.passages is None or len(segment.passages) == segment.about.passages
            assert segment.columns is not None  # a filter may come when a writer has removed them
        for name in fields:
            about = self.manifest.field(name)
            if isinstance(about, Bm25Field):
                self.bm25(name)
                continue
            for segment in self.segments:
                segment.search(name, self._uses_graph(name))
        if self._graph and not any(map(self._uses_graph, fields)):
            raise SettingsError(
                f"hnsw: the index {str(self.folder)!r} has no graph",
                "leave hnsw out, or build it with one: isthmus index … --overwrite --set "
                "dense.hnsw=true",
            )

    def _uses_graph(self, field: str) -> bool:
        about = self.manifest.fields[field]
        return self._graph and isinstance(about, DenseField) and about.settings.graph is not None

    def _has_several(self, field: str) -> bool:
        """Whether any document has several rows."""
        return self.has_passages(field) and any(
            one.about.passages != one.about.documents for one in self.segments
        )

    def _nearest(
        self,
        field: str,
        vectors: Any,
        depth: int,
        query_ids: Sequence[str],
        masks: Sequence[Mask],
    ) -> tuple[list[list[Answer]], npt.NDArray[np.float64]]:
        """Of each query, by segment, the best rows; and the score that the last of `depth` has.

        Scores below that may be left out. It is -inf where there are fewer rows.
        """
        nothing: Answer = np.empty(0, dtype=np.int64), np.empty(0)
        found = [[nothing] * len(self.segments) for _ in query_ids]
        highest = [np.empty(0) for _ in query_ids]
        floors = np.full(len(query_ids), -np.inf)
        prepared = None
        # The largest first: the scores that it reaches spare the others most.
        for place in sorted(range(len(self.segments)), key=lambda n: -self.segments[n].living):
            segment = self.segments[place]
            search = segment.search(field, self._uses_graph(field))
            if prepared is None:
                prepared = search.prepared(vectors, query_ids)
            mask = segment.spread(field, masks[place])
            for number, answer in enumerate(search.answers(prepared, depth, mask, floors)):
                found[number][place] = answer
                if len(answer[1]):
                    both = np.concatenate([highest[number], answer[1]])
                    highest[number] = _highest(both, depth)
                    if len(highest[number]) == depth:
                        floors[number] = highest[number][0]
        return found, floors

    def _by_documents(
        self,
        field: str,
        vectors: Any,
        depth: int,
        query_ids: Sequence[str],
        masks: Sequence[Mask],
    ) -> list[Ranking]:
        """The documents of the best passages; searched deeper until no further one could belong."""
        rows = sum(one.about.passages or 0 for one in self.segments)
        average = rows / max(1, sum(map(len, self.segments)))
        wanted = min(rows, ceil(_MORE * average * depth))
        answers = [Ranking(query_id) for query_id in query_ids]
        left = list(range(len(query_ids)))
        while left:
            some = vectors if len(left) == len(query_ids) else vectors[left]
            names = [query_ids[number] for number in left]
            found, floors = self._nearest(field, some, wanted, names, masks)
            documents = [self._documents_of(answer) for answer in found]
            rankings = self._rankings(documents, names, depth)
            for number, ranking in zip(left, rankings, strict=True):
                answers[number] = ranking
            left = [
                number
                for number, ranking, floor in zip(left, rankings, floors, strict=True)
                if floor > -np.inf and (len(ranking) < depth or ranking.scores[-1] <= floor)
            ]
            if wanted == rows:
                break
            wanted = min(_DEEPER * wanted, rows)
        return answers

    def _documents_of(self, answers: Sequence[Answer]) -> list[Answer]:
        """The documents that passages are of, each with the score of its best one."""
        return [
            _first_of_each(cast(Any, segment.passages).parents(rows), scores)
            for segment, (rows, scores) in zip(self.segments, answers, strict=True)
        ]

    def _naming(self, field: str, by: Unit) -> Any:
        """What names rows: ids of documents, or of passages."""
        if not self.has_passages(field):
            return None
        if by == "document":  # of which each has one passage
            return lambda segment, rows: segment.documents.ids(segment.passages.parents(rows))
        return lambda segment, rows: [one.id for one in segment.passages.passages(rows)]

    def _rankings(
        self,
        answers: Sequence[Sequence[Answer]],
        query_ids: Sequence[str],
        depth: int,
        naming: Any = None,
        order: Any = None,
    ) -> list[Ranking]:
        """The best of all segments; equal scores by id, passages of one document in their order."""
        if len(self.segments) == 1:  # whose answers are in order already
            first = [(rows[:depth], scores[:depth]) for ((rows, scores),) in answers]
            return self._of_one_segment(first, query_ids, naming)
        kept = [_reaching(of_query, depth) for of_query in answers]
        entries: list[list[tuple[float, str]]] = [[] for _ in query_ids]
        for place, segment in enumerate(self.segments):
            rows = np.concatenate([of_query[place][0] for of_query in kept])
            names = iter(segment.documents.ids(rows) if naming is None else naming(segment, rows))
            for some, of_query in zip(entries, kept, strict=True):
                some += [(-score, next(names)) for score in of_query[place][1].tolist()]
        rankings = []
        for query_id, some in zip(query_ids, entries, strict=True):
            best = sorted(some, key=order)[:depth]
            scores = tuple(-score for score, _ in best)
            rankings.append(Ranking(query_id, tuple(name for _, name in best), scores))
        return rankings

    def _of_one_segment(
        self, answers: Sequence[Answer], query_ids: Sequence[str], naming: Any
    ) -> list[Ranking]:
        (segment,) = self.segments
        rows = np.concatenate([rows for rows, _ in answers])
        names = segment.documents.ids(rows) if naming is None else naming(segment, rows)
        ends = np.cumsum([len(rows) for rows, _ in answers])
        return [
            Ranking(query_id, tuple(names[end - len(scores) : end]), tuple(scores.tolist()))
            for query_id, (_, scores), end in zip(query_ids, answers, ends, strict=True)
        ]


def _batches(segment: Segment, fields: Sequence[str]) -> Iterator[Batch]:
    if not fields:
        return
    readers = {name: segment.vectors(name, searched=True) for name in fields}
    first = 0
    living = segment.spread(fields[0], None)
    for rows in segment.rows(fields[0]):
        numbers = np.arange(first, first + len(rows))
        kept = numbers if living is None else numbers[living[numbers]]
        vectors = {name: reader.take(kept) for name, reader in readers.items()}
        first += len(rows)
        if len(kept):
            start = int(numbers[0])
            yield Batch([rows[int(row) - start] for row in kept], vectors)


def _in_order(entry: tuple[float, str]) -> tuple[float, str, int]:
    """What a passage is sorted by, as its segment does: of those of one document by its number."""
    score, passage = entry
    document, _, number = passage.rpartition("#")
    return score, document, int(number)


def _first_of_each(parents: Rows, scores: npt.NDArray[np.float64]) -> Answer:
    """The first entry of each parent, in their order."""
    order = np.argsort(parents, kind="stable")
    new = np.diff(parents[order], prepend=-1) != 0
    first = np.sort(order[new])
    return parents[first], scores[first]


def _reaching(answers: Sequence[Answer], depth: int) -> list[Answer]:
    """Of each segment what may be among the best of all; equal scores stay, as ids decide."""
    every = np.concatenate([scores for _, scores in answers]) if answers else np.empty(0)
    if len(every) <= depth:
        return list(answers)
    floor = _highest(every, depth)[0]
    counts = [int(np.count_nonzero(scores >= floor)) for _, scores in answers]  # the first ones
    return [
        (rows[:count], scores[:count])
        for (rows, scores), count in zip(answers, counts, strict=True)
    ]


def _highest(scores: npt.NDArray[np.float64], depth: int) -> npt.NDArray[np.float64]:
    """The `depth` highest, the lowest of them first; all where there are fewer."""
    cut = len(scores) - depth
    return np.sort(scores) if cut < 0 else np.partition(scores, cut)[cut:]


def _text(folder: Path) -> bytes | None:
    file = folder / MANIFEST
    return file.read_bytes() if file.is_file() else None
