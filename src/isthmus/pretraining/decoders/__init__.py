"""What rebuilds the text."""
