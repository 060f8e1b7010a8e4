"""A search server: an HTTP API and a page over an index that may change while it is served."""
