"""Replaces masked tokens by samples of a frozen masked language model (SimLM, ACL 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from isthmus.config.models import model_fingerprint, model_folder
from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.nn.backbone import Backbone
from isthmus.nn.randomness import uniform
from isthmus.pretraining.corruption._budget import MaskingSettings, most_hidden
from isthmus.pretraining.corruption.uniform import CHOICE_STREAM, Uniform
from isthmus.pretraining.labels import IGNORED, Vocabulary, at_places, places_of
from isthmus.pretraining.parts import Corruption
from isthmus.pretraining.registries import corruption
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

SAMPLE_STREAM = 7


class GeneratorSettings(MaskingSettings):
    """Which model fills in, and which tokens must then be predicted."""

    mask_share: float = Field(1.0, ge=0, le=1, description="of the chosen, masked first")
    random_share: float = Field(0.0, ge=0, le=1, description="of the chosen, made random first")
    labels: Literal["all", "chosen"] = Field(
        "all", description="every token that is not special, or only those that were chosen"
    )
    generator: str | None = Field(
        None,
        description="a masked LM with this tokenizer, frozen; null: that of the encoder's side",
    )


@corruption("generator")
class Generator(Uniform):
    """Replaces masked tokens by samples of a frozen masked language model (SimLM, ACL 2023).

    Uniformly chosen tokens, masked, then sampled from the generator's softmax.

    Sampling follows the generator's own arithmetic, so another device may draw another token where
    two are almost equally likely.
    """

    Settings = GeneratorSettings
    streams = (CHOICE_STREAM, SAMPLE_STREAM)
    settings: GeneratorSettings

    def beside(self, encoder: Corruption | None) -> None:
        """Takes over the encoder side's generator where it has none of its own."""
        self.name = self.settings.generator
        if self.name is None and isinstance(encoder, Generator):
            self.name = encoder.name

    def lack(self) -> SettingsError | None:
        """A refusal where no generator is named."""
        if self.name is not None:
            return None
        return SettingsError(
            f"{self.where} is not set: nothing would fill the masked tokens",
            f"--set {self.where}=NAME of a masked language model with the same tokenizer, such as "
            "google/electra-base-generator",
        )

    @property
    def where(self) -> str:
        """The setting that names the generator."""
        return f"{'corruption' if self.side == 'encoder' else 'decoder_corruption'}.generator"

    def data(self) -> Mapping[str, str]:
        """The generator's weights."""
        assert self.name is not None
        return {self.where: model_fingerprint(model_folder(self.name, self.where)) or self.name}

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """Loads the generator; refuses one without a head or with other tokens."""
        assert self.name is not None
        try:
            self.model, other = _load(model_folder(self.name, self.where))
        except InputError as error:
            error.at(self.where)
            error.fix = (
                f"check the name, or --set {self.where}=NAME of another masked language model "
                "with the same tokenizer, such as google/electra-base-generator or an earlier run"
            )
            raise
        if not self.model.has_head:
            raise MismatchError(
                f"{self.where}: the generator {self.name!r} has no masked-LM head",
                "choose a checkpoint with its head, such as an ELECTRA generator",
            )
        if other.backend.get_vocab() != tokenizer.backend.get_vocab():
            raise MismatchError(
                f"{self.where}: the generator {self.name!r} has another vocabulary than the model",
                "choose a generator made with the model's own tokenizer",
            )

    def labels(self, batch: Batch, chosen: Tensor, vocabulary: Vocabulary) -> Tensor:
        """Every token that is not special, unless the settings say otherwise."""
        if self.settings.labels == "chosen":
            return super().labels(batch, chosen, vocabulary)
        special = vocabulary.is_special(batch["input_ids"])
        return torch.where(special, IGNORED, batch["input_ids"])

    def labels_nothing(self) -> bool:
        """Whether only chosen tokens have a label, and none is chosen."""
        return self.settings.labels == "chosen" and super().labels_nothing()

    def most_labels(self, batch: Batch) -> int | None:
        """The tokens that are not special, or the budget."""
        if self.settings.labels == "chosen":
            return super().most_labels(batch)
        return len(batch["regular"]) if "regular" in batch else None

    @torch.no_grad()
    def hide(self, batch: Batch, chosen: Tensor, vocabulary: Vocabulary) -> Tensor:
        """The ids with samples in the chosen places."""
        masked = super().hide(batch, chosen, vocabulary)
        device = masked.device
        self.model.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            states = self.model(masked, batch["attention_mask"], batch.get("tokens"))
            chances = uniform(self.draw(batch, SAMPLE_STREAM))
            places = places_of(chosen, most_hidden(batch, self.settings.rate))
            _, states, chances = at_places(places, masked, states, chances)
            # Special tokens are left out, and with them rows that pad either model's matrix.
            logits = self.model.head(states)[:, vocabulary.regular].float()
        # In the order of the places; what is drawn for no place comes last, and is left over.
        return masked.masked_scatter(chosen, vocabulary.regular[sample(logits, chances)])


def sample(logits: Tensor, chances: Tensor) -> Tensor:
    """The token of each row where the summed probability first exceeds the row's chance."""
    sums = logits.softmax(1).cumsum(1)
    # The last sum is 1 only up to rounding; scaled by it, no chance exceeds it.
    reached = torch.searchsorted(sums, (chances * sums[:, -1])[:, None], right=True)[:, 0]
    return reached.clamp(max=logits.shape[1] - 1)


@lru_cache(maxsize=1)
def _load(name: str) -> tuple[Backbone, Tokenizer]:
    # Both sides share one.
    model = Backbone.load(name, head="keep").eval()
    return model.requires_grad_(False), Tokenizer.load(name)
