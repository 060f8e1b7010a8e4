"""For sparse encoders only: their task, counts of active terms, control of regularizers."""
