"""Masked language modelling: predicts the hidden tokens, head on labelled positions only."""

from __future__ import annotations

from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.labels import IGNORED, Vocabulary, at_labels
from isthmus.pretraining.parts import Objective
from isthmus.pretraining.registries import objective
from isthmus.training.task import Batch


@objective("masked_lm")
class MaskedLm(Objective):
    """Masked language modelling: predicts the hidden tokens, head on labelled positions only.

    Cross-entropy of head(H_i) against the original token, at the masked positions i.
    """

    requires = frozenset({"hidden_states", "labels"})
    reads = "labels"
    uses_head = True

    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """The labelled positions."""
        return (step["labels"] != IGNORED).sum()

    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """The summed cross-entropy."""
        targets, states = at_labels(step, "labels", step["hidden_states"])
        return {"": backbone.predict(states).cross_entropy(targets)}
