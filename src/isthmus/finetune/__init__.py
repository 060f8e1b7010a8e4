"""Staged fine-tuning: labelled pairs, negatives, losses, and the verb `finetune`."""

from isthmus.finetune.finetune import finetune
from isthmus.finetune.summary import next_step, summary

__all__ = ["finetune", "next_step", "summary"]
