"""Text in, vectors out."""

from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.encoders.loading import load_encoder

__all__ = ["DenseEncoder", "DenseSettings", "load_encoder"]
