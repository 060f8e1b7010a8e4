"""Regularizers: one file each, a function of term weights. What keeps vectors sparse."""
