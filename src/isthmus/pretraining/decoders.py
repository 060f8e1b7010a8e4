"""Decoders: what rebuilds the text from the bottleneck's vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from isthmus.config import Settings
from isthmus.errors import SettingsError
from isthmus.nn.architectures import LayerShape
from isthmus.nn.backbone import Backbone
from isthmus.nn.heads import Prediction, TiedHead
from isthmus.nn.layers import Form, Layer, TextLayout, copy_layer
from isthmus.nn.packing import Asking, Packing, Visible
from isthmus.nn.randomness import draw_visibility
from isthmus.pretraining.parts import Part
from isthmus.pretraining.registries import decoder
from isthmus.pretraining.step import IGNORED, Step
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch


class Decoder(Part, nn.Module, ABC):
    """Rebuilds the text. Owns its visibility and its labels."""

    provides = frozenset({"decoder_targets"})

    def middle_layer(self, depth: int) -> int | None:
        """After how many of the backbone's layers it takes states; None when it takes none."""
        return None

    def prepare(self, step: Step) -> Batch:
        """`decoder_labels`, where they are not a corruption's; before the forward pass."""
        return {}

    @abstractmethod
    def decode(self, step: Step) -> Tensor:
        """The decoder's states [rows, length, width]."""

    def head(self, states: Tensor, backbone: Backbone) -> Prediction:
        """The prediction of tokens, by the encoder's head unless the decoder has its own."""
        return backbone.predict(states)

    def forward(self, step: Step) -> Step:
        """The step with prediction and targets at the labelled positions; -100 fills up."""
        targets, states = step.at("decoder_labels", self.decode(step))
        made = step | {"decoder_targets": targets}
        return replace(made, prediction=self.head(states, step.backbone))


class StackSettings(Settings):
    """How deep a decoder is and how it starts."""

    layers: int = Field(1, ge=1, description="depth")
    init: Literal["random", "last"] | list[int] = Field(
        "random", description="random, the backbone's last layers, or those of these numbers"
    )


class Stack(nn.Module):
    """Post-norm layers of the backbone's shape, random or copied from its layers."""

    def __init__(self, backbone: Backbone, settings: StackSettings) -> None:
        super().__init__()
        shape = LayerShape.of(backbone.config)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(settings.layers))
        for layer, number in zip(self.layers, _copied(backbone, settings), strict=False):
            assert isinstance(layer, Layer)
            copy_layer(backbone, number, layer)

    def forward(
        self, states: Tensor, visible: Visible, some: tuple[Packing, Asking] | None = None
    ) -> Tensor:
        """The states after the last layer; with `some`, those of some tokens [1, places, width]."""
        *others, last = self.layers
        for layer in others:
            states = layer(states, visible)
        assert isinstance(last, Layer)
        return last(states, visible) if some is None else last.of_some(states, *some)


def layout_of(step: Step, form: Form = "quickest") -> TextLayout:
    """How the texts of a step lie in memory."""
    return TextLayout(step.backbone, step["attention_mask"], step.get("tokens"), form)


def labelled(stack: Stack, states: Tensor, layout: TextLayout, step: Step) -> Tensor:
    """The states [texts, length, width] after the stack, of which only labelled ones are read."""
    if not layout.some:
        return layout.within(stack, states)
    return layout.within_for(stack, states, step.asking("decoder_labels"))


def _copied(backbone: Backbone, settings: StackSettings) -> list[int]:
    if settings.init == "random":
        return []
    wanted = settings.layers
    if settings.init == "last":
        numbers = list(range(backbone.depth - wanted, backbone.depth))
    else:
        numbers = settings.init
    if len(numbers) != wanted or wanted > backbone.depth:
        source = "the last layers" if settings.init == "last" else f"layers {numbers}"
        raise SettingsError(
            f"decoder.init: a decoder of {wanted} layers cannot be copied from {source} of a "
            f"backbone of {backbone.depth}",
            "--set decoder.init=random or last, lower decoder.layers, or name one layer below "
            f"{backbone.depth} for each of them",
        )
    return numbers


def own_positions(backbone: Backbone) -> nn.Embedding | None:
    """Positions for a decoder whose backbone embeds none (ModernBERT rotates queries and keys)."""
    device = backbone.word_embeddings.device
    none = torch.zeros(1, 1, dtype=torch.int64, device=device)
    if backbone.position_embeddings(none) is not None:
        return None
    positions = nn.Embedding(backbone.positions, backbone.dimension)
    nn.init.normal_(positions.weight, std=0.02)
    return positions


def position_rows(ids: Tensor, backbone: Backbone, own: nn.Embedding | None) -> Tensor:
    """The embedding of every position of a batch, the decoder's own or the backbone's."""
    if own is not None:
        found: Tensor = own(torch.arange(ids.shape[1], device=ids.device))
        return found
    embedded = backbone.position_embeddings(ids)
    assert embedded is not None
    return embedded


class BidirectionalSettings(StackSettings):
    """How deep, how it starts, and what reads its states."""

    head: Literal["shared", "own"] = Field(
        "shared", description="the encoder's masked-LM head, or one of its own on tied embeddings"
    )


@decoder("bidirectional")
class Bidirectional(Decoder):
    """Layers that see both ways and fill in what the decoder's corruption hid.

    Auto-encoding (SimLM, CoT-MAE, CDMAE and the bag-of-words paper's own baseline) and, with a
    head of its own, LexMAE's decoder.

    Embeddings of the corrupted text, row 0 replaced by the bottleneck, and N layers.
    """

    Settings = BidirectionalSettings
    settings: BidirectionalSettings
    requires = frozenset(
        {"bottleneck", "partner", "decoder_ids", "decoder_labels", "attention_mask"}
    )

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """The layers, and the head where it is its own."""
        self.stack = Stack(backbone, self.settings)
        self.positions = own_positions(backbone)
        self.own_head: nn.Module | None = None
        if self.settings.head == "own":
            epsilon = LayerShape.of(backbone.config).norm_epsilon
            self.own_head = TiedHead(backbone.dimension, backbone.word_embeddings, epsilon)
        self.uses_head = self.own_head is None

    def decode(self, step: Step) -> Tensor:
        """The decoder's states."""
        vectors = step["bottleneck"][step["partner"]]
        ids = step["decoder_ids"]
        layout = layout_of(step)
        states = layout.embed(ids, vectors, self.positions)
        return labelled(self.stack, states, layout, step)

    def head(self, states: Tensor, backbone: Backbone) -> Prediction:
        """Through the encoder's head, or its own."""
        if self.own_head is None:
            return backbone.predict(states)
        prediction: Prediction = self.own_head(states, backbone.word_embeddings)
        return prediction


class AutoregressiveSettings(Settings):
    """How far back it sees."""

    window: int | None = Field(
        None, ge=1, description="tokens that a row sees beside the bottleneck, its own included"
    )


@decoder("autoregressive")
class Autoregressive(Decoder):
    """One causal layer that tells the text token by token from the bottleneck.

    Unmasked embeddings, row 0 the bottleneck; a pre-norm causal layer, a final LayerNorm.

    Row i predicts token i + 1: row 0 the first token, the last token's row the closing [SEP].
    """

    Settings = AutoregressiveSettings
    settings: AutoregressiveSettings
    requires = frozenset({"bottleneck", "partner", "input_ids", "attention_mask"})
    provides = Decoder.provides | {"decoder_labels"}
    most = "tokens and ends"
    uses_head = True

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """The layer and its norm."""
        shape = LayerShape.of(backbone.config)
        self.layer = Layer(shape, norm="pre")
        self.norm = nn.LayerNorm(shape.width, eps=shape.norm_epsilon)
        self.positions = own_positions(backbone)

    def prepare(self, step: Step) -> Batch:
        """The next token, where it is a token of the text or closes it."""
        following = step["input_ids"][:, 1:]
        last = step["attention_mask"].sum(1) - 1
        closing = torch.arange(1, step["input_ids"].shape[1], device=last.device) == last[:, None]
        wanted = ~step.vocabulary.is_special(following) | closing
        labels = torch.full_like(step["input_ids"], IGNORED)
        labels[:, :-1] = torch.where(wanted, following, IGNORED)
        return {"decoder_labels": labels}

    def decode(self, step: Step) -> Tensor:
        """The decoder's states."""
        vectors, ids = step["bottleneck"][step["partner"]], step["input_ids"]
        layout = layout_of(step, "quickest" if self.settings.window is None else "padded")
        states = layout.embed(ids, vectors, self.positions)
        if self.settings.window is None:
            return layout.within(self._normed, states, causal=True)
        visible = window(ids.shape[1], self.settings.window, ids.device)
        return self._normed(states, visible & step["attention_mask"].bool()[:, None, None, :])

    def _normed(self, states: Tensor, visible: Visible) -> Tensor:
        normed: Tensor = self.norm(self.layer(states, visible))
        return normed


def window(length: int, size: int, device: torch.device) -> Tensor:
    """True at [row, column] where the row sees the column: slot 0, and the latest tokens."""
    place = torch.arange(length, device=device)
    distance = place[:, None] - place
    return (distance >= 0) & ((distance < size) | (place == 0))


VISIBILITY_STREAM = 8


class EnhancedSettings(Settings):
    """How much each row does not see."""

    rate: float = Field(0.50, gt=0, lt=1, description="share of words hidden from each row")


@decoder("enhanced")
class Enhanced(Decoder):
    """Enhanced decoding (RetroMAE, EMNLP 2022): every position is rebuilt from its own sample.

    Queries: bottleneck + position. Keys and values: the unmasked text, row 0 the bottleneck.

    Row i never sees column i, always column 0, and every other column unless its word is in row
    i's own sample. A word is in a sample with probability `rate`, whatever the others do: drawing
    an exact number of words for every row means sorting rows · length² numbers.
    """

    Settings = EnhancedSettings
    settings: EnhancedSettings
    requires = frozenset({"bottleneck", "partner", "input_ids", "attention_mask", "words", "keys"})
    provides = Decoder.provides | {"decoder_labels"}
    most = "tokens"
    uses_head = True

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """The one layer."""
        self.layer = Layer(LayerShape.of(backbone.config))
        self.positions = own_positions(backbone)

    def prepare(self, step: Step) -> Batch:
        """Every token that is not special."""
        special = step.special()
        return {"decoder_labels": torch.where(special, IGNORED, step["input_ids"])}

    def decode(self, step: Step) -> Tensor:
        """The decoder's states."""
        vectors, ids = step["bottleneck"][step["partner"]], step["input_ids"]
        layout = layout_of(step, "packed")
        content = layout.embed(ids, vectors, self.positions)
        queries = vectors[:, None] + position_rows(ids, step.backbone, self.positions)
        visible = visibility(
            step["keys"], step["words"], step["attention_mask"].bool(), self.settings.rate
        )
        return layout.seeing(self.layer, queries, visible, content)


def visibility(keys: Tensor, words: Tensor, attended: Tensor, rate: float) -> Tensor:
    """True at [text, row, column] where the row sees the column, drawn from the texts' keys."""
    hidden = min(round(rate * 2**16), 2**16 - 1)
    return draw_visibility(keys, words, attended, VISIBILITY_STREAM, hidden)


class CondenserSettings(StackSettings):
    """How deep, and from where the other tokens come."""

    layers: int = Field(2, ge=1, description="depth")
    from_layer: int | None = Field(
        None, ge=1, description="layers that the other tokens went through; null: half of them"
    )


@decoder("condenser")
class Condenser(Decoder):
    """The Condenser head (EMNLP 2021): late [CLS] beside early states of the other tokens.

    Layers over [bottleneck ; layer-k states of the other tokens], the encoder's own labels.

    What the early states lack can only come through the late [CLS]. Both are of the same text,
    also where a view shows two.
    """

    Settings = CondenserSettings
    settings: CondenserSettings
    requires = frozenset({"bottleneck", "middle_states", "labels", "attention_mask"})
    provides = Decoder.provides | {"decoder_labels"}
    most = "labels"
    uses_head = True

    def build(self, backbone: Backbone, tokenizer: Tokenizer) -> None:
        """The layers."""
        layer = self.middle_layer(backbone.depth)
        if not 1 <= layer < backbone.depth:
            raise SettingsError(
                f"decoder.from_layer: the condenser takes states after layer {layer}, and the "
                f"backbone has {backbone.depth}",
                "choose a layer inside the backbone, or a deeper backbone",
                f"1 to {backbone.depth - 1}, null (half the depth)",
            )
        self.stack = Stack(backbone, self.settings)

    def middle_layer(self, depth: int) -> int:
        """Half the depth unless the settings name a layer."""
        return self.settings.from_layer or depth // 2

    def prepare(self, step: Step) -> Batch:
        """The encoder's labels."""
        return {"decoder_labels": step["labels"]}

    def decode(self, step: Step) -> Tensor:
        """The head's states."""
        states = torch.cat([step["bottleneck"][:, None], step["middle_states"][:, 1:]], 1)
        layout = layout_of(step)
        return labelled(self.stack, layout.laid_out(states), layout, step)
