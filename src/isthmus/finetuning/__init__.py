"""Staged fine-tuning: labelled pairs, negatives, losses, and the command `finetune`."""
