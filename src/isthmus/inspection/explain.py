"""The verb `isthmus explain`: why a document matched a query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import fsum
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from isthmus.config import Overrides
from isthmus.config.settings import check_arguments, several
from isthmus.indexes.long_documents import LongDocuments
from isthmus.inspection.explanation import (
    Explanation,
    FusedPart,
    FusedParts,
    Kind,
    SentencePart,
    TermPart,
)
from isthmus.records import Document, Passage, Query, Ranking
from isthmus.retrieval.fusion import fuse
from isthmus.retrieval.hybrid import HybridSearcher, Retriever
from isthmus.retrieval.many_queries import check_query
from isthmus.retrieval.reranker import RerankingSearcher
from isthmus.retrieval.searcher import Searcher
from isthmus.retrieval.verbs.search import SearchSettings, open_retriever

if TYPE_CHECKING:
    from isthmus.encoders.dense import DenseEncoder
    from isthmus.indexes.bm25 import Bm25Index
    from isthmus.indexes.index import Index

DEPTH = 1000  # documents that are ranked to say at which rank one is
_KINDS: dict[str, Kind] = {"bm25": "bm25", "dense": "dense", "inverted": "sparse"}
_NO_TEXT = "the index keeps no texts, so that there are no sentences to leave out"


def explain(
    index: str | Path | Retriever,
    query: str,
    document: str,
    *,
    hybrid: Iterable[str | Path] | str | Path = (),
    rerank: str | None = None,
    model: str | None = None,
    settings: SearchSettings | Overrides = None,
) -> Explanation:
    """Why the document of this id has its score for a query, and at which rank it is.

    For BM25 and sparse vectors, what each term adds; for dense ones, how much the score falls
    without each sentence; for several indexes, that of each and how they were fused; re-ranked,
    before and after. `index` is a folder or a retriever that
    is open already; everything else is as for `search`.
    """
    check_arguments("explain", {"query": query, "document": document})
    if not isinstance(index, str | PathLike):
        return explained(index, query, document)
    flags = {
        "hybrid": several(hybrid) or None,
        "model": model,
        "rerank.model": rerank,
    }
    return explained(open_retriever(index, SearchSettings.given(settings, flags)), query, document)


def explained(retriever: Retriever, query: str, document_id: str) -> Explanation:
    """Why a retriever gives the document of this id its score."""
    asked = Query("query", query)
    check_query(retriever, query)
    retriever.documents([document_id])  # refuses unknown ids
    if isinstance(retriever, RerankingSearcher):
        return _reranked(retriever, asked, document_id)
    (ranking,) = retriever.search([asked], DEPTH)
    return _explained(retriever, asked, document_id, ranking)


def _explained(
    retriever: Retriever, query: Query, document_id: str, ranking: Ranking
) -> Explanation:
    """What `explained` gives, where the ranking of the query is known."""
    if isinstance(retriever, HybridSearcher):
        return _fused(retriever, query, document_id)
    if not isinstance(retriever, Searcher):  # re-ranked, inside a hybrid
        return explained(retriever, query.text, document_id)
    (shown,) = retriever.documents([document_id], query.text)
    found = Explanation(
        query.text,
        document_id,
        shown.title,
        _KINDS[retriever.index.manifest.kind],
        None if retriever.encoder is None else retriever.encoder.name,
        rank=_rank(ranking, document_id),
        passage=shown if isinstance(shown, Passage) else None,
    )
    if not retriever.has_tokens(query.text):  # in a hybrid, others may read it
        return replace(found, notes=("the query has no words that it could search for",))
    # As search returns it, in the same arithmetic.
    (scored,) = retriever.score([query], [Ranking(query.id, (document_id,), (0.0,))])
    found = replace(found, score=scored.scores[0])
    # The row that counts: the document itself, or its best passage.
    index = retriever.index.index if isinstance(retriever.index, LongDocuments) else retriever.index
    if found.kind == "bm25":
        return replace(found, terms=_bm25_terms(cast("Bm25Index", index), query.text, shown.id))
    if found.kind == "sparse":
        return replace(found, terms=_sparse_terms(retriever, index, query.text, shown.id))
    return _dense(found, retriever, shown)


def _rank(ranking: Ranking, document_id: str) -> int | None:
    ids = ranking.document_ids
    return ids.index(document_id) + 1 if document_id in ids else None


def _bm25_terms(index: Bm25Index, query: str, row: str) -> tuple[TermPart, ...]:
    found = (
        TermPart(term, times, score, times * score, frequency, documents)
        for term, times, score, frequency, documents in index.term_scores(query, row)
    )
    return _largest_first(found)


def _sparse_terms(searcher: Searcher, index: Index, query: str, row: str) -> tuple[TermPart, ...]:
    """The terms of a query, each searched for alone: what it adds is its score."""
    import numpy as np
    from scipy.sparse import csr_matrix

    from isthmus.indexes.inverted.quantisation import searched

    encoder: Any = searcher.encoder
    manifest = index.manifest
    assert manifest.inverted is not None
    assert manifest.dimension is not None
    vector = csr_matrix(encoder.encode_queries([query]))
    weights = searched(vector, manifest.inverted, manifest.dimension, ["query"])
    kept = np.isin(vector.indices, weights.indices)  # others are too light for the index
    terms, count = vector.indices[kept], int(kept.sum())
    if not count:
        return ()
    alone = csr_matrix((vector.data[kept], terms, np.arange(count + 1)), (count, vector.shape[1]))
    names = [str(number) for number in range(count)]
    answers = index.search(alone, 1, names, among=[row])
    added = [ranking.scores[0] if len(ranking) else 0.0 for ranking in answers]
    in_query = [float(weights[0, term]) for term in terms.tolist()]
    tokens = encoder.tokenizer.names(terms.tolist())
    return _largest_first(
        TermPart(token, weight, score / weight, score)
        for token, weight, score in zip(tokens, in_query, added, strict=True)
    )


def _largest_first(parts: Iterable[TermPart]) -> tuple[TermPart, ...]:
    return tuple(sorted(parts, key=lambda one: (-one.contribution, one.term)))


def _dense(found: Explanation, searcher: Searcher, shown: Document) -> Explanation:
    from isthmus.encoders.light_dense import QuickEncoder
    from isthmus.inspection.sentence_scores import beginning, read_by_encoder, sentence_scores

    if not searcher.keeps_texts:
        return replace(found, notes=(_NO_TEXT,))
    encoder = cast("DenseEncoder", searcher.encoder)
    if isinstance(encoder, QuickEncoder):
        encoder = encoder.loaded
    settings, whole = encoder.settings, shown
    shown = beginning(whole, settings.titles, encoder.tokenizer, settings.document_max_length)
    contents = shown.contents(settings.titles)
    read = read_by_encoder(encoder, contents)
    asked = encoder.encode_queries([found.query])[0]

    def score(documents: Sequence[Document]) -> list[float]:
        scores: list[float] = (encoder.encode_documents(documents) @ asked).tolist()
        return scores

    sentences = sentence_scores(shown, settings.titles, read, score)
    return replace(found, sentences=sentences, notes=_unread(shown, whole, read))


def _unread(shown: Document, whole: Document, read: int) -> tuple[str, ...]:
    """A note where not even all the sentences are shown that the model does not read."""
    if shown is whole:
        return ()
    length = len(whole.text)
    return (f"the model reads {read:,} of {length:,} characters: not all that follow are shown",)


def _fused(hybrid: HybridSearcher, query: Query, document_id: str) -> Explanation:
    rankings = [answer[0] for answer in hybrid.components([query], DEPTH)]
    ranking = fuse(rankings, hybrid.weights, hybrid.fusion)
    parts = []
    for searcher, own, weight in zip(hybrid.searchers, rankings, hybrid.weights, strict=True):
        vote = 0.0
        if weight and len(own):
            votes = hybrid.fusion(own)
            vote = votes.found.get(document_id, votes.others)
        inner = _explained(searcher, query, document_id, own)
        parts.append(FusedPart(weight, vote, weight * vote, inner))
    (shown,) = hybrid.documents([document_id], query.text)
    rank = _rank(ranking, document_id)
    nowhere = f"no retriever has it among its first {max(DEPTH, hybrid.candidates):,}"
    return Explanation(
        query.text,
        document_id,
        shown.title,
        "hybrid",
        score=None if rank is None else fsum(one.contribution for one in parts),
        rank=rank,
        passage=shown if isinstance(shown, Passage) else None,
        fusion=FusedParts(getattr(hybrid.fusion, "__name__", "fusion"), tuple(parts)),
        notes=(nowhere,) if rank is None else (),
    )


def _reranked(searcher: RerankingSearcher, query: Query, document_id: str) -> Explanation:
    (before,) = searcher.searcher.search([query], max(DEPTH, searcher.candidates))
    (after,) = searcher.search([query], DEPTH)
    (shown,) = searcher.documents([document_id], query.text)
    rank = _rank(after, document_id)
    unread = (
        f"not among the {searcher.candidates:,} candidates that were read again: it follows below "
        "them in the order it had"
    )
    sentences: tuple[SentencePart, ...] | None = None
    notes: tuple[str, ...] = (unread,)
    if document_id in before.document_ids[: searcher.candidates]:
        sentences, notes = _reread(searcher, query.text, shown)
    return Explanation(
        query.text,
        document_id,
        shown.title,
        "reranked",
        getattr(searcher.scorer, "name", None),
        score=None if rank is None else after.scores[rank - 1],
        rank=rank,
        passage=shown if isinstance(shown, Passage) else None,
        sentences=sentences,
        before=_explained(searcher.searcher, query, document_id, before),
        notes=notes,
    )


def _reread(
    searcher: RerankingSearcher, query: str, whole: Document
) -> tuple[tuple[SentencePart, ...], tuple[str, ...]]:
    """The sentences of a document that was read again, and notes about them."""
    from isthmus.encoders.cross import CrossEncoder
    from isthmus.inspection.sentence_scores import beginning, read_by_reranker, sentence_scores

    scorer, shown = searcher.scorer, whole
    titles, read = True, len(shown.contents())
    if isinstance(scorer, CrossEncoder):
        titles = scorer.settings.titles
        shown = beginning(whole, titles, scorer.tokenizer, scorer.pairing.max_length)
        read = read_by_reranker(scorer, query, shown.contents(titles))

    def score(documents: Sequence[Document]) -> list[float]:
        scores: list[float] = scorer.score([(query, one) for one in documents]).tolist()
        return scores

    return sentence_scores(shown, titles, read, score), _unread(shown, whole, read)
