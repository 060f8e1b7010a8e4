"""Teaching an encoder a corpus without labels: parts, recipes, and the verb `pretrain`."""

from isthmus.pretraining.pretrain import pretrain

__all__ = ["pretrain"]
