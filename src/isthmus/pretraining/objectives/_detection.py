"""What both sides of replaced token detection share: a head of its own, and the binary loss."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.labels import IGNORED
from isthmus.pretraining.parts import Objective
from isthmus.text.tokenizer import Tokenizer


class Detector(Objective, nn.Module):
    """-Σ log σ(±z_i) with z = w·gelu(V h + c) + b: + where token i was replaced, - where not.

    The head is ELECTRA's (ICLR 2020). A sample that happens to be the original token counts as not
    replaced, as there.
    """

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """The head, random as a decoder's own layers."""
        self.dense = nn.Linear(backbone.dimension, backbone.dimension)
        self.decision = nn.Linear(backbone.dimension, 1)
        for layer in (self.dense, self.decision):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def _losses(self, states: Tensor, seen: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The summed loss over tokens whose original is known, and how many are judged right."""
        logits = self.decision(functional.gelu(self.dense(states)))[:, 0].float()
        replaced, counted = seen != targets, targets != IGNORED
        each = functional.binary_cross_entropy_with_logits(
            logits, replaced.to(logits.dtype), reduction="none"
        )
        right = ((logits.detach() > 0) == replaced) & counted
        return {"": torch.where(counted, each, 0).sum(), "right": right.sum().to(torch.float32)}
