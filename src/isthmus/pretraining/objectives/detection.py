"""Detection: the encoder says of every token whether it was replaced (LexMAE's table 8, RTD)."""

from __future__ import annotations

from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.labels import at_regular
from isthmus.pretraining.objectives._detection import Detector
from isthmus.pretraining.vocabulary import Vocabulary
from isthmus.training.task import Batch


class Detection(Detector):
    """Replaced token detection from H_i, at every token that is not special.

    Replacements are a generator's samples (corruption `generator`), or random tokens
    (`random_token`). The log also has the share of tokens judged right.
    """

    requires = frozenset({"hidden_states", "input_ids", "encoder_ids"})

    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """The tokens that are not special."""
        return (~vocabulary.is_special(step["input_ids"])).sum()

    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """The summed loss, and the number of tokens judged right."""
        targets, states, seen = at_regular(step, vocabulary)
        return self._losses(states, seen, targets)
