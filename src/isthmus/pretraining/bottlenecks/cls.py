"""The [CLS] state itself."""

from __future__ import annotations

from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.labels import Vocabulary
from isthmus.pretraining.parts import Bottleneck, first_states
from isthmus.pretraining.registries import bottleneck
from isthmus.training.task import Batch


@bottleneck("cls")
class Cls(Bottleneck):
    """The [CLS] state itself.

    H_0.
    """

    reads = "first"

    def forward(self, step: Batch, backbone: Backbone, vocabulary: Vocabulary) -> Tensor:
        """The vectors [rows, width]."""
        return first_states(step)
