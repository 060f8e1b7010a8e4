"""Token vectors: what of them is stored, and how texts are compared token by token."""
