"""Which tokens are hidden."""
