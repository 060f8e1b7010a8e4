"""Protocols: which methods are compared, how, on what, and what the result of a run holds."""
