"""Where negatives come from."""
