"""Staged fine-tuning: labelled pairs, negatives, losses, and the verb `finetune`."""

from isthmus.finetuning.finetune import finetune
from isthmus.finetuning.summary import next_step, summary

__all__ = ["finetune", "next_step", "summary"]
