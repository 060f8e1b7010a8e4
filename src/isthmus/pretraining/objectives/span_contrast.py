"""Span contrast: the two texts of a document find each other among all of the batch.

coCondenser (ACL 2022), equation 6.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.labels import Vocabulary
from isthmus.pretraining.parts import Objective, ObjectiveSettings, first_states
from isthmus.pretraining.registries import objective
from isthmus.training.parallel import gather, rank
from isthmus.training.task import Batch


class SpanContrastSettings(ObjectiveSettings):
    """How sharp the softmax is."""

    temperature: float = Field(1.0, gt=0, description="dot products are divided by it")


@objective("span_contrast")
class SpanContrast(Objective):
    """Span contrast: the two texts of a document find each other among all of the batch.

    coCondenser (ACL 2022), equation 6.

    -log softmax over all other texts of <H_0, H_0'> / temperature, at the document's other text.

    The other texts are those of one pass on all processes. Gradient accumulation does not add to
    them.
    """

    Settings = SpanContrastSettings
    settings: SpanContrastSettings
    requires = frozenset({"hidden_states", "partner", "pairs"})
    reads = "first"

    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """The texts."""
        return torch.full((), len(step["partner"]), device=step["partner"].device)

    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """The summed loss."""
        vectors = first_states(step).float()
        gathered, first = gather(vectors), rank() * len(vectors)
        return {"": span_contrast(vectors, gathered, step["partner"], first, self.settings)}


def span_contrast(
    vectors: Tensor,
    gathered: Tensor,
    partner: Tensor,
    first: int,
    settings: SpanContrastSettings,
) -> Tensor:
    """The sum over `vectors`, which are rows `first` and on of `gathered`."""
    with torch.autocast(vectors.device.type, enabled=False):
        scores = vectors @ gathered.T / settings.temperature
    own = torch.arange(len(vectors), device=vectors.device)
    scores = scores.masked_fill(
        torch.arange(len(gathered), device=own.device) == (own + first)[:, None], -torch.inf
    )
    return functional.cross_entropy(scores, partner + first, reduction="sum")
