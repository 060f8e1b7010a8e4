"""Measurements on held-out documents while training goes on: when to stop."""
