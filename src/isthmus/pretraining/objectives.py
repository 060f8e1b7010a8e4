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
from isthmus.pretraining.decoders import decoder_prediction
from isthmus.pretraining.labels import IGNORED, Vocabulary, at_labels, at_regular
from isthmus.pretraining.parts import Part, Vector, first_states, mean_states
from isthmus.pretraining.registries import objective
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.parallel import gather, rank
from isthmus.training.task import Batch


class ObjectiveSettings(Settings):
    """Settings of every objective."""

    weight: float = Field(1.0, ge=0, description="of this loss in the sum")
    decay_to: float | None = Field(
        None, ge=0, description="share of the weight left at the last optimiser step, by cosine"
    )


class Objective(Part, ABC):
    """A loss on one encoder pass: a sum over items, and the number of items."""

    Settings = ObjectiveSettings
    # `NAME=VALUE` of its settings that makes it train a vector.
    setting_to_train: ClassVar[Mapping[Vector, str]] = {}

    @abstractmethod
    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """How many items the loss sums over, known before the forward pass."""

    @abstractmethod
    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """`{"": sum of the loss}`, and sums of further quantities worth a line in the log."""


@objective("masked_lm")
class MaskedLm(Objective):
    """Masked language modelling: predicts the hidden tokens, head on labelled positions only.

    Cross-entropy of head(H_i) against the original token, at the masked positions i.
    """

    requires = frozenset({"hidden_states", "labels"})
    reads = "labels"
    uses_head = True

    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """The labelled positions."""
        return (step["labels"] != IGNORED).sum()

    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """The summed cross-entropy."""
        targets, states = at_labels(step, "labels", step["hidden_states"])
        return {"": backbone.predict(states).cross_entropy(targets)}


@objective("reconstruction")
class Reconstruction(Objective):
    """Reconstruction: the decoder predicts the tokens that it labels.

    Cross-entropy of the decoder's logits, at its labelled positions.
    """

    requires = frozenset({"decoder_features", "decoder_targets", "decoder_labels"})

    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """The positions that the decoder labels."""
        return (step["decoder_labels"] != IGNORED).sum()

    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """The summed cross-entropy."""
        return {"": decoder_prediction(step).cross_entropy(step["decoder_targets"])}


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

    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """The texts with at least one token that is not special."""
        # A partner's bag counts once for its partner: the number is the same for both targets.
        return (~vocabulary.is_special(step["input_ids"])).any(1).sum()

    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """The summed loss, and its summed distance from the lower bound log|T|."""
        input_ids = step["input_ids"]
        inside = ~vocabulary.is_special(input_ids)
        if self.settings.target == "partner":
            input_ids = input_ids[step["partner"]]
        bags = token_sets(input_ids, vocabulary.special)
        sizes = bags.sum(1)
        if self.settings.vector == "max":
            largest = self._predict(step["hidden_states"], backbone).largest(inside)
            loss = bag_of_words(largest, bags).sum()
        else:
            vector = first_states(step) if self.settings.vector == "cls" else mean_states(step)
            loss = self._predict(vector, backbone).bag_cross_entropy(bags, sizes)
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

    requires = frozenset({"hidden_states", "input_ids"})
    reads = "first"
    uses_head = True

    def count(self, step: Batch, vocabulary: Vocabulary) -> Tensor:
        """The texts with at least one token that is not special."""
        return (~vocabulary.is_special(step["input_ids"])).any(1).sum()

    def __call__(
        self, step: Batch, backbone: Backbone, vocabulary: Vocabulary
    ) -> dict[str, Tensor]:
        """The summed squared error."""
        logits = backbone.head(first_states(step))
        counts = term_counts(step["input_ids"], vocabulary)
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
