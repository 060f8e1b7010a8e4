"""Reconstruction: the decoder predicts the tokens that it labels."""

from __future__ import annotations

from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.decoders import decoder_prediction
from isthmus.pretraining.labels import IGNORED, Vocabulary
from isthmus.pretraining.parts import Objective
from isthmus.pretraining.registries import objective
from isthmus.training.task import Batch


@objective("reconstruction")
class Reconstruction(Objective):
    """Reconstruction: the decoder predicts the tokens that it labels.

    Cross-entropy of the decoder's logits, at its labelled positions.
    """

    requires = frozenset({"decoder_features", "decoder_targets", "decoder_labels"})

    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """The positions that the decoder labels."""
        return (step["decoder_labels"] != IGNORED).sum()

    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """The summed cross-entropy."""
        return {"": decoder_prediction(step).cross_entropy(step["decoder_targets"])}
