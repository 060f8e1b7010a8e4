"""The mean of the hidden states, for encoders that retrieve with it."""

from __future__ import annotations

from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.arithmetic import Shape, Texts
from isthmus.pretraining.parts import Bottleneck, mean_states
from isthmus.pretraining.vocabulary import Vocabulary
from isthmus.training.task import Batch


class Mean(Bottleneck):
    """The mean of H over the tokens of a text."""

    requires = frozenset({"hidden_states", "attention_mask"})
    trains = "mean"

    def operations(self, shape: Shape, texts: Texts) -> int | None:
        """Zero: no matrix product is needed."""
        return 0

    def forward(self, step: Batch, backbone: Backbone, vocabulary: Vocabulary) -> Tensor:
        """The vectors [rows, width]."""
        return mean_states(step)
