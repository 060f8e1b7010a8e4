"""Runs the steps of a benchmark: many processes, one folder, nothing done twice."""
