"""Kinds of encoders, one file each: what fine-tuning has to know of them."""
