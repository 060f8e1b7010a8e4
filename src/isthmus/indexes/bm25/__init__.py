"""BM25: what a term is, postings built in bounded memory, and the search of them."""

from isthmus.indexes.bm25.analyzer import Analyzer
from isthmus.indexes.bm25.index import Bm25Index

__all__ = ["Analyzer", "Bm25Index"]
