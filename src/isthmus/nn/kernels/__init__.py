"""Everything that is there for speed alone: Triton kernels, and the plain torch beside each."""
