"""Dense vectors: exact search, or by a graph of them."""
