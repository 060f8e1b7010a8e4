"""Indexes that change: whole indexes searched as one, added to, deleted from, merged, spread."""
