"""Vectors of texts as JSON has them: numbers, or weights of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from isthmus.errors import shown
from isthmus.records import Document
from isthmus.retrieval.searcher import Searcher
from isthmus.serving.model_imports import import_models
from isthmus.serving.refusals import RefusalError
from isthmus.serving.retrievers import Offer

if TYPE_CHECKING:
    from isthmus.encoders import SparseEncoder


def encoded(
    offer: Offer, texts: Sequence[str], kind: Literal["query", "document"]
) -> list[list[float]] | list[dict[str, float]]:
    """A list of numbers per text; of a sparse encoder, its tokens with their weights."""
    encoder: Any = cast(Searcher, offer.plain).encoder
    for text in texts:
        check_words(offer, text)
    import_models()
    if kind == "query":
        vectors = encoder.encode_queries(texts)
    elif hasattr(encoder, "encode_documents"):
        vectors = encoder.encode_documents([Document("", text) for text in texts])
    else:
        raise RefusalError(
            422,
            f"only queries can be encoded by {offer.name!r}: its documents' side is not loaded",
            where="kind",
            why="kind = query",
            fix="encode documents with `isthmus encode`",
        )
    if offer.kind == "dense":
        return cast(list[list[float]], vectors.tolist())
    return [_terms(encoder, vectors[row]) for row in range(len(texts))]


def check_words(offer: Offer, text: str) -> None:
    """Refuses a text of which nothing reaches an encoder."""
    if not offer.plain.has_tokens(text):
        raise RefusalError(
            422,
            f"{shown(text)} has no words for {offer.name!r} to read",
            where="text",
            why="texts of which the tokenizer leaves something",
            fix="write it with words",
        )


def _terms(encoder: SparseEncoder, row: Any) -> dict[str, float]:
    tokens = encoder.tokenizer.pretrained.convert_ids_to_tokens
    pairs = zip(row.indices.tolist(), row.data.tolist(), strict=True)
    heaviest = sorted(pairs, key=lambda one: (-one[1], one[0]))
    return {str(tokens(term)): weight for term, weight in heaviest}
