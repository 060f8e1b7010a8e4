"""BM25: what a term is, postings built in bounded memory, and the search of them."""
