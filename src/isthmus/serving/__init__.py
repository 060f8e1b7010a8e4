"""A search server: an HTTP API and a page over indexes that may change while they are served."""
