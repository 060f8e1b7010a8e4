"""Sparse vectors: an exact inverted index, and Seismic beside it."""
