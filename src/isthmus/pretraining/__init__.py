"""Training an encoder on documents without labels: parts, recipes, the command `pretrain`."""
