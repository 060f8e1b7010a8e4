"""Decoder detection: the decoder says which tokens of its text were replaced (Enc-Dec RTD).

LexMAE's table 8 takes it from SimLM (ACL 2023), whose encoder and decoder both detect there what
they otherwise restore.
"""

from __future__ import annotations

from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.labels import IGNORED, at_labels
from isthmus.pretraining.objectives._detection import Detector
from isthmus.pretraining.vocabulary import Vocabulary
from isthmus.training.task import Batch


class DecoderDetection(Detector):
    """Replaced token detection from the decoder's states, at the positions that it labels.

    With labels=all of its corruption (`generator`, `random_token`) that is every token that is not
    special.
    """

    requires = frozenset({"decoder_states", "decoder_ids", "decoder_targets", "decoder_labels"})

    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """The positions that the decoder labels."""
        return (step["decoder_labels"] != IGNORED).sum()

    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """The summed loss, and the number of tokens judged right."""
        targets, seen = at_labels(step, "decoder_labels", step["decoder_ids"])
        return self._losses(step["decoder_states"], seen, targets)
