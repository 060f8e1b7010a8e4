"""Protocols: which starting points are compared, how, on what, and what a cell's result holds."""
