"""Regularizers keep vectors sparse: one file each, a function of term weights."""
