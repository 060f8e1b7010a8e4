"""The mean of the hidden states, for encoders that retrieve with it."""

from __future__ import annotations

from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.labels import Vocabulary
from isthmus.pretraining.parts import Bottleneck, mean_states
from isthmus.pretraining.registries import bottleneck
from isthmus.training.task import Batch


@bottleneck("mean")
class Mean(Bottleneck):
    """The mean of the hidden states, for encoders that retrieve with it.

    The mean of H over the tokens of a text.
    """

    requires = frozenset({"hidden_states", "attention_mask"})
    trains = "mean"

    def forward(self, step: Batch, backbone: Backbone, vocabulary: Vocabulary) -> Tensor:
        """The vectors [rows, width]."""
        return mean_states(step)
