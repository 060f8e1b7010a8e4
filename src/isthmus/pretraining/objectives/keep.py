"""Keep: 1 - cosine of a text's vector to the one that the encoder gave it at the start.

For an encoder that retrieves already, and shall not unlearn it (in none of the papers).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Literal

import torch
import torch.nn.functional as functional
from torch import Tensor

from isthmus.nn.backbone import Backbone
from isthmus.pretraining.parts import Objective, ObjectiveSettings, first_states, mean_states
from isthmus.pretraining.vocabulary import Vocabulary
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch


class KeepSettings(ObjectiveSettings):
    """Which vector is held."""

    vector: Literal["cls", "mean"] = "mean"


class Keep(Objective):
    """1 - cos(v(x'), v_0(x)): x' the text as it is masked, v_0 the encoder before training."""

    Settings = KeepSettings
    settings: KeepSettings
    requires = frozenset({"hidden_states", "input_ids", "attention_mask"})

    def __init__(self, settings: KeepSettings) -> None:
        super().__init__(settings)
        self.reads = "first" if settings.vector == "cls" else "all"

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """A copy of the backbone as it is now."""
        self._start = deepcopy(backbone).eval().requires_grad_(False)

    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """The texts."""
        return torch.full((), len(step["input_ids"]), device=step["input_ids"].device)

    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """The summed loss."""
        start = self._start.to(backbone.word_embeddings.device)
        with torch.no_grad():
            found = start.encode(step["input_ids"], step["attention_mask"], step.get("tokens"))
        before = {"hidden_states": found.states, "attention_mask": step["attention_mask"]}
        vector = first_states if self.settings.vector == "cls" else mean_states
        cosines = functional.cosine_similarity(vector(step).float(), vector(before).float())
        return {"": (1 - cosines).sum()}
