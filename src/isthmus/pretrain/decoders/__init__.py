"""Who rebuilds the text."""
