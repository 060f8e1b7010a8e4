"""Replaced token: names the original token at every position, replaced or not (SimLM, ACL 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.labels import Vocabulary, at_regular
from isthmus.pretraining.parts import Objective
from isthmus.pretraining.registries import objective
from isthmus.training.task import Batch


@objective("replaced_token")
class ReplacedToken(Objective):
    """Replaced token: names the original token everywhere, replaced or not (SimLM, ACL 2023).

    Cross-entropy of head(H_i) against the original token, at every token that is not special.

    Nothing marks a replaced token, so each may be one. The log also has the share of replaced
    tokens that are restored.
    """

    requires = frozenset({"hidden_states", "input_ids", "encoder_ids"})
    uses_head = True

    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """The tokens that are not special."""
        return (~vocabulary.is_special(step["input_ids"])).sum()

    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """The summed cross-entropy, and the share of all tokens that are restored replacements."""
        targets, states, seen = at_regular(step, vocabulary)
        prediction = backbone.predict(states)
        with torch.no_grad():
            guessed = prediction.most_likely()
        restored = ((seen != targets) & (guessed == targets)).sum().to(torch.float32)
        return {"": prediction.cross_entropy(targets), "restored": restored}
