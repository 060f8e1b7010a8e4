"""Objectives: the losses on one encoder pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from isthmus.config import Settings
from isthmus.errors import SettingsError
from isthmus.nn.backbone import Backbone
from isthmus.nn.heads import Prediction
from isthmus.pretraining.parts import Part, Vector
from isthmus.pretraining.registries import objective
from isthmus.pretraining.step import Items, Step, Vocabulary
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.parallel import gather, rank


class ObjectiveSettings(Settings):
    """Settings of every objective."""

    weight: float = Field(1.0, ge=0, description="of this loss in the sum")
    decay_to: float | None = Field(
        None, ge=0, description="share of the weight left at the last optimiser step, by cosine"
    )


class Objective(Part, ABC):
    """A loss on one encoder pass: a sum over items, whose number is known before."""

    Settings = ObjectiveSettings
    items: ClassVar[Items]  # what the mean is taken over
    # `NAME=VALUE` of its settings that makes it train a vector.
    setting_to_train: ClassVar[Mapping[Vector, str]] = {}

    @abstractmethod
    def __call__(self, step: Step) -> dict[str, Tensor]:
        """`{"": sum of the loss}`, and sums of further quantities worth a line in the log."""


@objective("masked_lm")
class MaskedLm(Objective):
    """Masked language modelling: predicts the hidden tokens, head on labelled positions only.

    Cross-entropy of head(H_i) against the original token, at the masked positions i.
    """

    items = "labels"
    requires = frozenset({"hidden_states", "labels"})
    reads = "labels"
    uses_head = True

    def __call__(self, step: Step) -> dict[str, Tensor]:
        """The summed cross-entropy."""
        targets, states = step.at("labels", step["hidden_states"])
        return {"": step.backbone.predict(states).cross_entropy(targets)}


@objective("reconstruction")
class Reconstruction(Objective):
    """Reconstruction: the decoder predicts the tokens that it labels.

    Cross-entropy of the decoder's logits, at its labelled positions.
    """

    items = "decoder_labels"
    requires = frozenset({"decoder_targets", "decoder_labels"})

    def __call__(self, step: Step) -> dict[str, Tensor]:
        """The summed cross-entropy."""
        assert step.prediction is not None, "the decoder predicts"
        return {"": step.prediction.cross_entropy(step["decoder_targets"])}


class BagOfWordsSettings(ObjectiveSettings):
    """What predicts, and through what."""

    projection: Literal["head", "embeddings"] = "head"
    vector: Literal["cls", "mean", "max"] = Field(
        "cls",
        description="what predicts: one state, or max: of each term the largest logit over the "
        "text's ordinary tokens",
    )
    target: Literal["own", "partner"] = Field(
        "own", description="the bag of the text itself, or of its neighbour where a view shows two"
    )


@objective("bag_of_words")
class BagOfWords(Objective):
    """Bag of words: one vector predicts the set of the text's tokens; no decoder, nearly free.

    "Drop your Decoder" (SIGIR 2024), equation 12. The equation writes h·Eᵀ; the authors' code uses
    the full masked-LM head, and so does the default here.

    -(1/|T|) Σ_{t in T} log softmax(head(H_0))_t, T the set of the unmasked text's tokens.

    `vector: mean` predicts from the mean of the hidden states instead of [CLS], for encoders that
    will retrieve with mean pooling; `target: partner` predicts the neighbouring text of a view that
    shows two, CoT-MAE without its decoder (neither is in the paper). `vector: max` is the bag of
    DupMAE (ACL 2023): the logits are max_i head(H_i), over tokens i that are not special.
    """

    Settings = BagOfWordsSettings
    settings: BagOfWordsSettings
    items = "texts"
    requires = frozenset({"hidden_states", "input_ids", "attention_mask", "partner"})
    setting_to_train: ClassVar[Mapping[Vector, str]] = {"cls": "vector=cls", "mean": "vector=mean"}

    def __init__(self, settings: BagOfWordsSettings) -> None:
        super().__init__(settings)
        self.reads = "first" if settings.vector == "cls" else "all"
        self.trains = None if settings.vector == "max" else settings.vector

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """Refuses the literal equation where hidden states and embeddings differ in width."""
        self.uses_head = self.settings.projection == "head"
        if not self.uses_head and backbone.embedding_width != backbone.dimension:
            raise SettingsError(
                f"objectives.bag_of_words.projection: hidden states are {backbone.dimension} "
                f"wide, word embeddings {backbone.embedding_width}, and so have no product",
                "--set objectives.bag_of_words.projection=head",
            )

    def __call__(self, step: Step) -> dict[str, Tensor]:
        """The summed loss, and its summed distance from the lower bound log|T|."""
        input_ids = step["input_ids"]
        inside = ~step.special()
        if self.settings.target == "partner":
            input_ids = input_ids[step["partner"]]
        bags = token_sets(input_ids, step.vocabulary.special)
        sizes = bags.sum(1)
        if self.settings.vector == "max":
            largest = self._predict(step["hidden_states"], step.backbone).largest(inside)
            loss = bag_of_words(largest, bags).sum()
        else:
            vector = step.first() if self.settings.vector == "cls" else step.mean()
            loss = self._predict(vector, step.backbone).bag_cross_entropy(bags, sizes)
        # The bound of an empty bag is 0, as its loss.
        bound = sizes.clamp(min=1).to(loss.dtype).log().sum()
        return {"": loss, "gap": loss.detach() - bound}

    def _predict(self, states: Tensor, backbone: Backbone) -> Prediction:
        if self.settings.projection == "head":
            return backbone.predict(states)
        return Prediction(states, backbone.word_embeddings, None)


def token_sets(ids: Tensor, special: Tensor) -> Tensor:
    """True at [row, token] where the row holds that token; `special` is True for what counts not.

    It has an entry for every token of the vocabulary.
    """
    nothing = ids.new_zeros(len(ids), len(special), dtype=torch.bool)
    return nothing.scatter_(1, ids, ~special[ids])


def bag_of_words(logits: Tensor, bags: Tensor) -> Tensor:
    """The loss of each row, in float32; 0 for an empty bag."""
    logits = logits.float()
    sizes = bags.sum(1)
    inside = torch.where(bags, logits, 0).sum(1) / sizes.clamp(min=1)
    return torch.where(sizes > 0, logits.logsumexp(1) - inside, 0)


@objective("term_frequency")
class TermFrequency(Objective):
    """Term frequency: [CLS] regresses the normalised term counts of the text.

    The "MLM + CLS" baseline of the benchmark of pre-training for retrieval.

    || head(H_0) - tf / ||tf||₂ ||², tf the counts of the unmasked text's tokens.

    Summed over the vocabulary: its mean would be thirty thousand times smaller, and vanish.
    """

    items = "texts"
    requires = frozenset({"hidden_states", "input_ids"})
    reads = "first"
    uses_head = True

    def __call__(self, step: Step) -> dict[str, Tensor]:
        """The summed squared error."""
        logits = step.backbone.head(step.first())
        counts = term_counts(step["input_ids"], step.vocabulary)
        return {"": term_frequency(logits, counts).sum()}


def term_counts(input_ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """How often each row holds each token [rows, vocabulary]; special tokens are not counted."""
    regular = (~vocabulary.is_special(input_ids)).float()
    counts = torch.zeros(len(input_ids), vocabulary.size, device=input_ids.device)
    return counts.scatter_add_(1, input_ids, regular)


def term_frequency(logits: Tensor, counts: Tensor) -> Tensor:
    """The squared error of each row, in float32; 0 for a row without tokens."""
    norms = counts.norm(dim=1, keepdim=True)
    errors = (logits.float() - counts / norms.clamp(min=1)).square().sum(1)
    return torch.where(norms[:, 0] > 0, errors, 0)


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
    items = "rows"
    requires = frozenset({"hidden_states", "partner", "pairs"})
    reads = "first"

    def __call__(self, step: Step) -> dict[str, Tensor]:
        """The summed loss."""
        vectors = step.first().float()
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


@objective("replaced_token")
class ReplacedToken(Objective):
    """Replaced token: names the original token everywhere, replaced or not (SimLM, ACL 2023).

    Cross-entropy of head(H_i) against the original token, at every token that is not special.

    Nothing marks a replaced token, so each may be one. The log also has the share of replaced
    tokens that are restored.
    """

    items = "tokens"
    requires = frozenset({"hidden_states", "input_ids", "encoder_ids"})
    uses_head = True

    def __call__(self, step: Step) -> dict[str, Tensor]:
        """The summed cross-entropy, and the share of all tokens that are restored replacements."""
        targets, states, seen = step.at_regular(
            step["input_ids"], step["hidden_states"], step["encoder_ids"]
        )
        prediction = step.backbone.predict(states)
        with torch.no_grad():
            guessed = prediction.most_likely()
        restored = ((seen != targets) & (guessed == targets)).sum().to(torch.float32)
        return {"": prediction.cross_entropy(targets), "restored": restored}
