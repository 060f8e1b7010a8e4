"""Which losses are added."""
