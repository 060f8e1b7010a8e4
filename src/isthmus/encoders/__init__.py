"""Text in, vectors or scores out."""

from isthmus.encoders.cross import CrossEncoder, CrossSettings
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.loader import (
    AnyEncoder,
    load_encoder,
    load_indexed_encoder,
    load_int8_encoder,
    load_query_encoder,
    load_reranker,
)
from isthmus.encoders.multi_vector import MultiVectorEncoder, MultiVectorSettings
from isthmus.encoders.sparse import SparseEncoder, SparseSettings

__all__ = [
    "AnyEncoder",
    "CrossEncoder",
    "CrossSettings",
    "DenseEncoder",
    "DenseSettings",
    "MultiVectorEncoder",
    "MultiVectorSettings",
    "SparseEncoder",
    "SparseSettings",
    "load_encoder",
    "load_indexed_encoder",
    "load_int8_encoder",
    "load_query_encoder",
    "load_reranker",
]
