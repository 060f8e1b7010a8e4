"""Term frequency: [CLS] regresses the normalised term counts of the text.

The "MLM + CLS" baseline of the benchmark of pre-training for retrieval.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.labels import Vocabulary
from isthmus.pretraining.parts import Objective, first_states
from isthmus.pretraining.registries import objective
from isthmus.training.task import Batch


@objective("term_frequency")
class TermFrequency(Objective):
    """Term frequency: [CLS] regresses the normalised term counts of the text.

    The "MLM + CLS" baseline of the benchmark of pre-training for retrieval.

    || head(H_0) - tf / ||tf||₂ ||², tf the counts of the unmasked text's tokens.

    Summed over the vocabulary: its mean would be thirty thousand times smaller, and vanish.
    """

    requires = frozenset({"hidden_states", "input_ids"})
    reads = "first"
    uses_head = True

    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """The texts with at least one token that is not special."""
        return (~vocabulary.is_special(step["input_ids"])).any(1).sum()

    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """The summed squared error."""
        logits = backbone.head(first_states(step))
        counts = term_counts(step["input_ids"], vocabulary)
        return {"": term_frequency(logits, counts).sum()}


def term_counts(input_ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """How often each row holds each token [rows, vocabulary]; special tokens are not counted."""
    regular = (~vocabulary.is_special(input_ids)).float()
    counts = torch.zeros(len(input_ids), vocabulary.size, device=input_ids.device)
    return counts.scatter_add_(1, input_ids, regular)


def term_frequency(logits: Tensor, counts: Tensor) -> Tensor:
    """The squared error of each row, in float32; 0 for a row without tokens."""
    norms = counts.norm(dim=1, keepdim=True)
    errors = (logits.float() - counts / norms.clamp(min=1)).square().sum(1)
    return torch.where(norms[:, 0] > 0, errors, 0)
