"""Why a document matched a query: what adds up to its score, and at which rank it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from math import fsum
from typing import TYPE_CHECKING, Any, Literal, cast

from isthmus.config.settings import check_arguments
from isthmus.evaluation.tables import Cell, Shown, Table
from isthmus.indexes.fields import of_type
from isthmus.indexes.index import Unit
from isthmus.indexes.manifest import FieldAbout, SparseField, TokensField
from isthmus.records import Document, Passage, Query, Ranking, document_of
from isthmus.retrieval.fusion import fuse, fusions
from isthmus.retrieval.many_queries import check_query
from isthmus.retrieval.matches import Match, matched
from isthmus.retrieval.reranker import RerankingSearcher
from isthmus.retrieval.searcher import Retriever, Searcher
from isthmus.text.sentences import sentence_starts

if TYPE_CHECKING:
    from isthmus.encoders.dense import DenseEncoder

Kind = Literal["bm25", "sparse", "dense", "tokens", "fused", "reranked"]
_RANKED = 1000  # documents among which the rank is looked for
_SHORT, _PER_TOKEN = 20_000, 16  # characters of a document, and of a token, that are looked at
_LONGEST = 160  # characters of a sentence that a table shows


@dataclass(frozen=True, slots=True)
class TermPart:
    """A term of the query: its weights in query and document, whose product is added to the score.

    For BM25, the weight in the query is how often it is there, `frequency` that in the document,
    and `documents` how many hold the term.
    """

    term: str
    query_weight: float
    document_weight: float
    contribution: float
    frequency: int | None = None
    documents: int | None = None


@dataclass(frozen=True, slots=True)
class SentencePart:
    """A sentence, or a title, and how much the score falls without it; None if it is not read."""

    text: str
    contribution: float | None


@dataclass(frozen=True, slots=True)
class FusedPart:
    """What one field adds to a fused score: its weight times its vote."""

    weight: float
    vote: float
    contribution: float
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class FusedParts:
    """How scores were made comparable, and what each field added."""

    name: str
    parts: tuple[FusedPart, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Shown):
    """Why a document has its score for a query, by one field or several.

    `terms` (bm25, sparse), `words` (tokens) and the parts of `fusion` (fused) add up to the score;
    `sentences` (dense) say how much lower it is without each. What there is none of is None, and
    `notes` say why. `rank` is None below the first 1,000.
    """

    query: str
    id: str
    title: str
    kind: Kind
    field: str | None = None
    model: str | None = None
    score: float | None = None
    rank: int | None = None
    passage: Passage | None = None
    terms: tuple[TermPart, ...] | None = None
    words: tuple[Match, ...] | None = None
    sentences: tuple[SentencePart, ...] | None = None
    fusion: FusedParts | None = None
    before: Explanation | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return asdict(self, dict_factory=_facts)

    def to_json(self) -> str:
        """Everything, as a text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2)

    def tables(self) -> Iterator[str | Table]:
        """Lines and tables, in the order in which they are shown."""
        name = f"{self.id} “{self.title}”" if self.title else self.id
        model = f" of {self.model}" if self.model else ""
        rank = "below the first 1,000" if self.rank is None else f"rank {self.rank}"
        by = self.field or self.kind
        yield f"{name} for “{self.query}” by {by}{model}: {_scored(self.score)}, {rank}"
        if (one := self.passage) is not None:
            below = f" below “{one.heading}”" if one.heading else ""
            yield f"its passage {one.number}{below}, characters {one.start:,}–{one.end:,}, counts"
        if self.terms is not None:
            yield _term_table(self)
        if self.words is not None:
            yield _word_table(self)
        if self.sentences is not None:
            yield _sentence_table(self.sentences)
        if self.fusion is not None:
            yield _fusion_table(self.fusion, self.score)
        yield from self.notes
        for part in self.fusion.parts if self.fusion else ():
            yield from part.explanation.tables()
        if self.before is not None:
            yield "before it was re-ranked:"
            yield from self.before.tables()


def explained(retriever: Retriever, query: str, document_id: str) -> Explanation:
    """Why a retriever gives the document of this id its score, and at which rank it is."""
    check_arguments("explain", {"query": query, "document": document_id})
    retriever.documents([document_id])  # refuses unknown ids
    check_query(retriever, query)
    asked = Query("query", query)
    if isinstance(retriever, RerankingSearcher):
        return _reranked(retriever, asked, document_id)
    (ranking,) = retriever.search([asked], _RANKED)
    return _explained(retriever, asked, document_id, ranking)


def _explained(
    retriever: Retriever, query: Query, document_id: str, ranking: Ranking
) -> Explanation:
    """What `explained` gives, where the ranking of the query is known."""
    if not isinstance(retriever, Searcher):
        return explained(retriever, query.text, document_id)
    if len(retriever.fields) > 1:
        return _fused(retriever, query, document_id)
    return _by_field(retriever, retriever.fields[0], query, document_id, ranking)


def _by_field(
    searcher: Searcher, field: str, query: Query, document_id: str, ranking: Ranking
) -> Explanation:
    index, encoder = searcher.index, searcher.encoders.get(field)
    about = index.manifest.field(field)
    alone = Searcher(index, searcher.encoders, (field,), searcher.fusion, searcher.by)
    # The row that counts: the document itself, or its best passage.
    (shown,) = alone.documents([document_id], query.text)
    found = replace(_of(shown, document_id, query, about.type, ranking), field=field)
    if encoder is not None:
        found = replace(found, model=encoder.name)
    if not searcher.reads(field, query.text):  # others may read it
        return replace(found, notes=("the query has no words that it could search for",))
    # As search returns it, in the same arithmetic.
    given = searcher.query_vectors(field, [query.text])
    if isinstance(about, TokensField):
        return _tokens(found, searcher, field, given, shown)
    given = of_type(about, given)
    (score,) = _scores(searcher, field, given, shown)
    found = replace(found, score=score)
    if about.type == "bm25":
        terms = index.bm25(field).term_scores(query.text, document_id)
        parts = (
            TermPart(term, times, score, times * score, frequency, documents)
            for term, times, score, frequency, documents in terms
        )
        return replace(found, terms=_largest_first(parts))
    if about.type == "sparse":
        return replace(found, terms=_largest_first(_sparse_terms(searcher, field, given, shown)))
    return _dense(found, about, encoder, shown)


def _of(
    shown: Document, document_id: str, query: Query, kind: Kind, ranking: Ranking
) -> Explanation:
    """What is known of a document as soon as the query is answered."""
    ids = ranking.document_ids
    rank = ids.index(document_id) + 1 if document_id in ids else None
    passage = shown if isinstance(shown, Passage) else None
    return Explanation(query.text, document_id, shown.title, kind, rank=rank, passage=passage)


def _scores(searcher: Searcher, field: str, queries: Any, row: Document) -> list[float]:
    """What a document, or a passage of one, scores for each of the prepared queries."""
    index = searcher.index
    count = len(queries) if isinstance(queries, list) else queries.shape[0]
    asked = [str(number) for number in range(count)]
    if not isinstance(row, Passage):
        found = index.search(field, queries, 1, asked, index.masks_of([row.id]))
    else:
        owner = document_of(row.id)
        depth, masks = len(index.passages_of(owner)), index.masks_of([owner])
        found = index.search(field, queries, depth, asked, masks, by="passage")
    return [dict(ranking).get(row.id, 0.0) for ranking in found]


def _sparse_terms(searcher: Searcher, field: str, given: Any, row: Document) -> Iterator[TermPart]:
    """The terms of a query, each searched for alone: what it adds is its score."""
    import numpy as np
    from scipy.sparse import csr_matrix

    from isthmus.indexes.sparse.quantisation import searched

    encoder: Any = searcher.encoders[field]
    about = searcher.index.manifest.field(field)
    assert isinstance(about, SparseField)
    vector = csr_matrix(given)
    weights = searched(vector, about.settings, about.dimension, ["query"])
    kept = np.isin(vector.indices, weights.indices)  # others are too light for the index
    terms, count = vector.indices[kept], int(kept.sum())
    if not count:
        return
    alone = csr_matrix((vector.data[kept], terms, np.arange(count + 1)), (count, vector.shape[1]))
    scores = _scores(searcher, field, alone, row)
    tokens = encoder.tokenizer.names(terms.tolist())
    for token, term, score in zip(tokens, terms.tolist(), scores, strict=True):
        weight = float(weights[0, term])
        yield TermPart(token, weight, score / weight, score)


def _tokens(
    found: Explanation, searcher: Searcher, field: str, given: Any, shown: Document
) -> Explanation:
    """The explanation with the words of the query, each with those that are nearest to it."""
    encoder: Any = searcher.encoders[field]
    by: Unit = "passage" if isinstance(shown, Passage) else "document"
    encode = encoder.encode_documents
    scores = searcher.index.scored(field, given, [shown.id], by, encode)
    (pair,) = matched(searcher.index, field, encoder, given, found.query, [shown])
    found = replace(found, score=scores.get(shown.id))
    if pair is None or not pair.products.size:
        return replace(found, notes=("the document has no words that could be compared",))
    return replace(found, words=tuple(sorted(pair.matches(), key=lambda one: -one.contribution)))


def _largest_first(parts: Iterable[TermPart]) -> tuple[TermPart, ...]:
    return tuple(sorted(parts, key=lambda one: (-one.contribution, one.term)))


def _dense(found: Explanation, about: FieldAbout, given: Any, document: Document) -> Explanation:
    """The explanation with title, headings and sentences, each with the score's fall without it.

    What is beyond the reach of the model is not read either when something before it is left out.
    """
    from isthmus.encoders.light_dense import QuickEncoder

    encoder = cast("DenseEncoder", given)
    if isinstance(encoder, QuickEncoder):
        encoder = encoder.loaded
    settings, tokenizer = encoder.settings, encoder.tokenizer
    room = settings.document_max_length - len(tokenizer.prefix) - len(tokenizer.suffix)
    shown = replace(document, text=document.text[: max(_SHORT, _PER_TOKEN * room)])
    contents, prompt = shown.contents(settings.titles), settings.document_prompt
    (begins,) = tokenizer.starts([prompt + contents])
    reached = len(contents) if len(begins) <= room else int(begins[room]) - len(prompt)

    edges = [*sentence_starts(shown.text), len(shown.text)]
    pieces = contents[: len(contents) - len(shown.text)].splitlines(keepends=True)
    pieces += [shown.text[start:end] for start, end in pairwise(edges)]
    starts = accumulate(map(len, pieces), initial=0)
    kept = [piece[: max(0, reached - start)] for piece, start in zip(pieces, starts, strict=False)]
    places = [place for place, piece in enumerate(kept) if piece.strip()]
    variants = ["".join(kept), *("".join(kept[:at] + kept[at + 1 :]) for at in places)]
    vectors = of_type(about, encoder.encode_documents([Document("", text) for text in variants]))
    (asked,) = of_type(about, encoder.encode_queries([found.query]))
    whole, *without = (vectors @ asked).tolist()
    falls = {place: whole - left for place, left in zip(places, without, strict=True)}
    sentences = tuple(
        SentencePart(piece.strip(), falls.get(place))
        for place, piece in enumerate(pieces)
        if piece.strip()
    )
    if shown.text == document.text:
        return replace(found, sentences=sentences)
    of = f"{reached:,} of {len(document.text):,} characters"
    note = f"the model reads {of}: not all that follow are shown"
    return replace(found, sentences=sentences, notes=(note,))


def _fused(searcher: Searcher, query: Query, document_id: str) -> Explanation:
    answers = searcher.components([query], _RANKED)
    rankings = [answers[field][0] for field in searcher.fields]
    fusion = fusions.load(searcher.fusion.fusion, where="fusion")
    parts = []
    for field, own, weight in zip(searcher.fields, rankings, searcher.weights, strict=True):
        vote = 0.0
        if weight and len(own):
            votes = fusion(own)
            vote = votes.found.get(document_id, votes.others)
        inner = _by_field(searcher, field, query, document_id, own)
        if field not in searcher.finding and inner.score is not None and not vote:
            most = searcher.fusion.compared
            note = f"not among the first {most:,} of the other fields: its tokens gave no vote"
            inner = replace(inner, notes=(*inner.notes, note))
        parts.append(FusedPart(weight, vote, weight * vote, inner))
    (shown,) = searcher.documents([document_id], query.text)
    ranking = fuse(rankings, searcher.weights, fusion)
    together = FusedParts(searcher.fusion.fusion, tuple(parts))
    found = replace(_of(shown, document_id, query, "fused", ranking), fusion=together)
    if found.rank is None:
        first = max(_RANKED, searcher.fusion.candidates)
        return replace(found, notes=(f"no field has it among its first {first:,}",))
    return replace(found, score=fsum(one.contribution for one in parts))


def _reranked(searcher: RerankingSearcher, query: Query, document_id: str) -> Explanation:
    (before,) = searcher.searcher.search([query], max(_RANKED, searcher.candidates))
    (after,) = searcher.search([query], _RANKED)
    (shown,) = searcher.documents([document_id], query.text)
    found = _of(shown, document_id, query, "reranked", after)
    note = (
        f"not among the {searcher.candidates:,} candidates that were re-ranked: it follows below "
        "them in the order it had"
    )
    return replace(
        found,
        model=getattr(searcher.scorer, "name", None),
        score=None if found.rank is None else after.scores[found.rank - 1],
        before=_explained(searcher.searcher, query, document_id, before),
        notes=() if document_id in before.document_ids[: searcher.candidates] else (note,),
    )


def _facts(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a part; of a passage, also its number."""
    values = dict(pairs)
    if "heading" in values:
        values["number"] = int(values["id"].rpartition("#")[2])
    return values


def _scored(score: float | None) -> str:
    return "no score" if score is None else f"score {score:.4f}"


def _term_table(found: Explanation) -> Table:
    terms = found.terms or ()
    counted = any(one.documents is not None for one in terms)
    more = ("times", "documents with it") if counted else ()
    rows = tuple(
        (
            Cell(one.term),
            *(Cell(f"{x:.4g}") for x in (one.query_weight, one.document_weight)),
            Cell(f"{one.contribution:.4f}", quiet=not one.contribution),
            *(Cell(_number(x)) for x in (one.frequency, one.documents) if counted),
        )
        for one in terms
    )
    caption = f"Products of both weights; their sum is the {_scored(found.score)}."
    return Table(("term", "in the query", "in the document", "adds", *more), rows, caption)


def _word_table(found: Explanation) -> Table:
    rows = tuple(
        (
            Cell(one.word),
            Cell(f"{one.weight:.4g}"),
            Cell(", ".join(dict.fromkeys(answer.text for answer in one.answers))),
            Cell(f"{one.product:.4f}"),
            Cell(f"{one.contribution:.4f}", quiet=not one.contribution),
        )
        for one in found.words or ()
    )
    caption = f"Weight times product with what is nearest; their sum is the {_scored(found.score)}."
    columns = ("word of the query", "weight", "nearest in the text", "product", "adds")
    return Table(columns, rows, caption)


def _sentence_table(sentences: tuple[SentencePart, ...]) -> Table:
    best = max((one.contribution for one in sentences if one.contribution is not None), default=0)
    rows = tuple(
        (
            Cell(" ".join(f"{one.text[:_LONGEST]}{' …' * (len(one.text) > _LONGEST)}".split())),
            Cell("not read", quiet=True)
            if one.contribution is None
            else Cell(f"{one.contribution:+.4f}", best=one.contribution == best > 0),
        )
        for one in sentences
    )
    caption = "How much the score falls without a sentence; they need not add up to it."
    return Table(("sentence", "adds"), rows, caption)


def _fusion_table(fusion: FusedParts, score: float | None) -> Table:
    rows = tuple(
        (
            Cell(" of ".join(filter(None, (one.explanation.field, one.explanation.model)))),
            Cell(_number(one.explanation.rank)),
            Cell("–" if one.explanation.score is None else f"{one.explanation.score:.4f}"),
            *(Cell(f"{x:.4f}") for x in (one.weight, one.vote, one.contribution)),
        )
        for one in fusion.parts
    )
    caption = f"{fusion.name}: weight times vote of each field; sum: {_scored(score)}."
    return Table(("field", "rank", "score", "weight", "vote", "adds"), rows, caption)


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
