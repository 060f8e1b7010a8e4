"""Staged fine-tuning: labelled pairs, negatives, losses, and the verb `finetune`."""

from isthmus.finetune.finetune import finetune

__all__ = ["finetune"]
