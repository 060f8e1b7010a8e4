"""Sparse vectors: an exact inverted index."""
