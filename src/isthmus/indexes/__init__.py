"""Vectors or texts in, rankings out: exact dense search and BM25."""
