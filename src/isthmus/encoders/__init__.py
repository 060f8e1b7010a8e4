"""Text in, vectors out."""

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.loading import load_encoder
from isthmus.encoders.sparse import SparseEncoder, SparseSettings

__all__ = ["DenseEncoder", "DenseSettings", "SparseEncoder", "SparseSettings", "load_encoder"]
