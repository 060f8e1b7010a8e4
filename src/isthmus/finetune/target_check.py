"""Whether a finished model has as many terms as its regularizers were to leave it."""

from __future__ import annotations

import numpy as np

from isthmus.finetune.active_terms import active_terms
from isthmus.finetune.pairs import PairExamples
from isthmus.finetune.regularization import SIDES
from isthmus.finetune.task import BiEncoderTask
from isthmus.progress import notice
from isthmus.training.chunks import in_chunks
from isthmus.training.looking import evaluating
from isthmus.training.trainer import Trainer

_TEXTS = 128  # of either side
_OFF = 0.2  # more than this share off its target, it is missed


def check_targets(
    task: BiEncoderTask, examples: PairExamples, trainer: Trainer
) -> dict[str, float] | None:
    """The active terms of training texts by side; says where they missed a target, and what to do.

    None where nothing had a target.
    """
    if not task.steering:
        return None
    active = _active(task, examples, trainer)
    for regularizer in task.regularizers:
        for side, steering in regularizer.steering.items():
            if abs(active[side] / steering.target - 1) <= _OFF:
                continue
            where = f"regularizers.{regularizer.name}"
            told = (
                f"{side} have {active[side]:,.1f} terms on average in the finished model; "
                f"{where}.target.{side} = {steering.target:g} is MISSED: train longer, "
            )
            if active[side] > steering.target:
                told += f"let the ramp end sooner ({where}.ramp), or begin with a higher weight"
            else:
                told += "lower training.learning_rate, or begin with a lower weight"
            notice(f"{told} ({where}.{side}; it came to {float(steering.weight):.2g})")
    return active


def _active(task: BiEncoderTask, examples: PairExamples, trainer: Trainer) -> dict[str, float]:
    encoder, device = task.encoder, task.encoder.backbone.word_embeddings.device
    drawn = np.linspace(0, len(examples) - 1, min(_TEXTS, len(examples))).astype(int).tolist()
    groups = [examples[0, number] for number in drawn]
    # One passage of each, positives and negatives as often as training sees them.
    one = [
        group._replace(rows=[group.rows[place % len(group.rows)]], teacher=[])
        for place, group in enumerate(groups)
    ]
    batch = {name: part.to(device) for name, part in examples.collate(one).items()}
    with evaluating(trainer):
        vectors = (
            in_chunks(encoder.represent_queries, batch["query_ids"], batch["query_mask"]),
            in_chunks(encoder.represent_documents, batch["passage_ids"], batch["passage_mask"]),
        )
        return {side: float(active_terms(part)) for side, part in zip(SIDES, vectors, strict=True)}
