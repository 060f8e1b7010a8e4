"""Whole comparisons: from a protocol to runs to a table that gives a verdict."""
