"""The registries of fine-tuning and the decorators that fill them; no part is imported here."""

from isthmus.registry import Registry

KINDS = Registry("isthmus.finetuning.kinds", "kind", "kind of encoder")
NEGATIVES = Registry("isthmus.finetuning.negatives", "negatives", "source of negatives")
TEACHERS = Registry("isthmus.finetuning.teachers", "teacher")
LOSSES = Registry("isthmus.finetuning.losses", "loss")
REGULARIZERS = Registry("isthmus.finetuning.regularizers", "regularizer")
PSEUDO_QUERIES = Registry(
    "isthmus.finetuning.pseudo_queries", "pseudo_queries", "source of pseudo-queries"
)

kind = KINDS.register
negatives = NEGATIVES.register
teacher = TEACHERS.register
loss = LOSSES.register
regularizer = REGULARIZERS.register
pseudo_queries = PSEUDO_QUERIES.register
