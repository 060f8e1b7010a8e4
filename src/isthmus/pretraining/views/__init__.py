"""Which text the encoder sees."""
