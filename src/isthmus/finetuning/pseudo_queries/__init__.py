"""Queries drawn from documents, for training without labels: one file per source."""
