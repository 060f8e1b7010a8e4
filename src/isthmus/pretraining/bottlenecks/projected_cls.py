"""The [CLS] state through a linear map with bias, which is dropped with the decoder (CDMAE)."""

from __future__ import annotations

from torch import Tensor, nn

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.labels import Vocabulary
from isthmus.pretraining.parts import Bottleneck, first_states
from isthmus.pretraining.registries import bottleneck
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch


@bottleneck("projected_cls")
class ProjectedCls(Bottleneck):
    """The [CLS] state through a linear map with bias, which is dropped with the decoder (CDMAE).

    W H_0 + c.
    """

    reads = "first"

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """A square map, random as the decoder's own."""
        self.projection = nn.Linear(backbone.dimension, backbone.dimension)
        nn.init.normal_(self.projection.weight, std=0.02)
        nn.init.zeros_(self.projection.bias)

    def forward(self, step: Batch, backbone: Backbone, vocabulary: Vocabulary) -> Tensor:
        """The vectors [rows, width]."""
        projected: Tensor = self.projection(first_states(step))
        return projected
