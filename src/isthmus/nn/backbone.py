"""One interface for every encoder: hidden states, and a head that runs on chosen rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from isthmus.config.model_files import loadable
from isthmus.errors import MismatchError, SettingsError
from isthmus.nn.architectures import head_modules
from isthmus.nn.attention import Attention, use_packable_attention
from isthmus.nn.heads import Prediction, VocabularyLayer, predict
from isthmus.nn.kernels.available import Untouched, has_kernels
from isthmus.nn.kernels.bert_layer import PostNormStack, kernel_type
from isthmus.nn.kernels.norm_gelu import drop_add_norm
from isthmus.nn.loading import load_masked_lm, quiet, set_values, with_pooler
from isthmus.nn.numerics import position_numbers, use_first_type, use_quick_dropout
from isthmus.nn.packing import Asking, Full, Packing, take_rows
from isthmus.nn.shapes import shape_of


class Encoded(NamedTuple):
    """The states of a padded batch."""

    states: Tensor
    middle: Tensor | None = None  # after the layer that `encode` was called with
    output: Any = None  # of transformers' model, where it computed the batch unpacked
    taken: Tensor | None = None  # the first states, where they were computed apart

    @property
    def first(self) -> Tensor:
        """The states of every text's first token, [batch, width]."""
        return self.states[:, 0] if self.taken is None else self.taken


class Backbone(nn.Module):
    """An encoder, with its masked-LM head where it has one."""

    _several_types: ClassVar[bool] = False  # whether a text has parts of another type

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        use_quick_dropout(model)
        if not self._several_types:
            use_first_type(model)
        self.packs = use_packable_attention(model)  # whether the encoder can do without padding
        self.use_packing = True
        self.own_layers = PostNormStack.of(model) if self.packs else None
        if self.has_head:
            model.get_output_embeddings().__class__ = VocabularyLayer
        self.untouched = Untouched(model)
        self.own_dropout: dict[str, float] = {}
        self.fresh_head = False  # made here, and not trained yet

    @classmethod
    def load(
        cls,
        name: str,
        head: Literal["add", "keep"] = "keep",
        dropout: float | None = None,
        seed: int = 0,
        attention: Attention | None = None,
    ) -> Backbone:
        """The encoder of a folder or hub name, in float32.

        Args:
            name: Anything AutoModel loads from safetensors; code inside it is never run.
            head: "add" gives an encoder without a masked-LM head a fresh one, tied to its
                embeddings, and says so; "keep" leaves such an encoder without.
            dropout: Replaces every dropout rate of the model.
            seed: Draws the fresh head's weights.
            attention: Its implementation; by default, the one that trains faster on this machine.

        """
        model, own_dropout = load_masked_lm(name, head, dropout, seed, attention)
        with loadable(name):
            backbone = cls(model)
        backbone.own_dropout = own_dropout
        return backbone

    @property
    def config(self) -> Any:
        """The Hugging Face configuration."""
        return self.model.config

    @property
    def head_modules(self) -> list[nn.Module] | None:
        """The modules of the masked-LM head, in order; None without a head."""
        return head_modules(self.model)

    @property
    def has_head(self) -> bool:
        """Whether it predicts the vocabulary."""
        return self.head_modules is not None

    @property
    def encoder(self) -> Any:
        """The model below the head."""
        return self.model.base_model

    @property
    def dimension(self) -> int:
        """The width of the hidden states."""
        return int(self.config.hidden_size)

    @property
    def depth(self) -> int:
        """The number of layers."""
        return int(self.config.num_hidden_layers)

    @property
    def layers(self) -> list[nn.Module]:
        """The layers in order; transformers has no common name for them."""
        lists = (part for part in self.encoder.modules() if isinstance(part, nn.ModuleList))
        return list(next(part for part in lists if len(part) == self.depth))

    @property
    def word_embeddings(self) -> Tensor:
        """E, the [vocabulary, embedding width] matrix of input embeddings."""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def embedding_width(self) -> int:
        """The width of the word embeddings; in ELECTRA often less than that of the states."""
        return int(self.word_embeddings.shape[1])

    @property
    def positions(self) -> int:
        """The longest text the model can read, special tokens included."""
        padding = self._position_padding
        # T5 knows how far two tokens are apart, not where they are: it has no limit.
        limit = int(getattr(self.config, "max_position_embeddings", sys.maxsize))
        return limit if padding is None else limit - padding - 1

    @property
    def _windows(self) -> bool:
        # In some layers of ModernBERT, a token sees a few others to either side.
        return getattr(self.config, "sliding_window", None) is not None

    @property
    def _position_padding(self) -> int | None:
        embeddings = getattr(self.encoder, "embeddings", None)
        padding: int | None = getattr(embeddings, "padding_idx", None)
        return padding

    def check_length(self, length: int, setting: str) -> None:
        """Raises on a setting that allows longer texts than the model has positions for."""
        if length > self.positions:
            raise SettingsError(
                f"{setting} = {length} is more than the {self.positions} positions that the model "
                "has",
                f"--set {setting}={self.positions}",
            )

    def check_tokens(self, tokens: int) -> None:
        """Raises on a tokenizer with more tokens than the model has embeddings for."""
        rows = len(self.word_embeddings)
        if tokens > rows:
            raise MismatchError(
                f"the tokenizer of the model has {tokens:,} tokens, the model embeddings for "
                f"{rows:,}",
                "save both from one source, or model.resize_token_embeddings(…) and save",
            )

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        tokens: Tensor | None = None,
        asking: Asking | None = None,
    ) -> Tensor:
        """H, the last hidden states [batch, length, width]; those of padding are undefined.

        `tokens`: their places in the flattened batch, which spare a device synchronisation; by
        default, found in the mask. `asking`: the tokens whose states are needed, each text's first
        among them; by default, all. The states of the others are undefined.
        """
        return self.encode(input_ids, attention_mask, tokens, asking=asking).states

    @property
    def leaves_padding_out(self) -> bool:
        """Whether batches are packed wherever that pays, so that padding costs nothing."""
        return self.packs and self.use_packing

    def packing(self, attention_mask: Tensor, tokens: Tensor | None = None) -> Packing | None:
        """How a batch is packed; None where it is quicker to leave it padded."""
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if not self.use_packing or tracing:  # a trace would fix the lengths
            return None
        packing = Packing.of(attention_mask, tokens)
        return packing if packing.saves else None

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        tokens: Tensor | None,
        segments: Tensor | None = None,
        layer: int | None = None,
        asking: Asking | None = None,
    ) -> Encoded:
        """The last hidden states, those after `layer` layers, and the output they came with.

        After 0 layers they are what `embed` gives. ModernBERT norms its last states alone: after
        fewer layers than all, they are not normed.
        """
        assert layer is None or 0 <= layer <= self.depth, f"{layer} of {self.depth} layers"
        given = {"input_ids": input_ids}
        if segments is not None:
            given["token_type_ids"] = segments
        packing = self.packing(attention_mask, tokens) if self.packs else None
        fused = self._fused()
        if packing is not None and packing.whole and not self._windows:
            if fused is not None:
                return self._run_fused(fused, given, packing, layer, asking)
            # Without a mask, torch chooses the fastest of its attention kernels.
            return self._run(given, layer)
        if packing is None:
            return self._run(given, layer, attention_mask=attention_mask)
        packed = self._packed(given, packing)
        if fused is not None:
            return self._run_fused(fused, packed, packing, layer, asking)
        # transformers passes on a mask of four dimensions as it is, and makes none itself.
        options = {"attention_mask": packing.present, "packing": packing}
        states, middle, *_ = self._run(packed, layer, **options)
        return Encoded(packing.unpack(states), None if middle is None else packing.unpack(middle))

    def _packed(self, given: dict[str, Tensor], packing: Packing) -> dict[str, Tensor]:
        """The packed inputs, with the numbers of their positions."""
        ids = given["input_ids"]
        numbers = position_numbers(ids, self._position_padding).expand_as(ids)
        packed = {**given, "position_ids": numbers}
        return {name: packing.pack(each) for name, each in packed.items()}

    def _run(self, given: dict[str, Tensor], layer: int | None, **options: Any) -> Encoded:
        """The states computed by transformers' layers."""
        # Not output_hidden_states: its hooks inside the layers would split a compiled graph.
        seen: list[Tensor] = []
        with self._watched(layer, seen):
            output = self.encoder(**given, **options)
        last = output.last_hidden_state
        if layer is None:
            return Encoded(last, None, output)
        return Encoded(last, last if layer == self.depth else seen[0], output)

    @contextmanager
    def _watched(self, layer: int | None, seen: list[Tensor]) -> Iterator[None]:
        """Appends the states after so many layers to `seen`."""

        def note(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            seen.append(inputs[0] if inputs else named["hidden_states"])

        if layer is None or layer == self.depth:
            yield
            return
        handle = self.layers[layer].register_forward_pre_hook(note, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def _fused(self) -> PostNormStack | None:
        """The layers computed by kernels; None where these do not run."""
        own = self.own_layers
        if own is None or own.checkpointed or not has_kernels(self.word_embeddings):
            return None
        return own if self.untouched else None

    @property
    def asks_for_some(self) -> bool:
        """Whether the last layer computes only the states that `asking` names."""
        return self.leaves_padding_out and self._fused() is not None

    def _run_fused(
        self,
        stack: PostNormStack,
        given: dict[str, Tensor],
        packing: Packing,
        layer: int | None,
        asking: Asking | None,
    ) -> Encoded:
        """The states computed by kernels."""
        embedded = self._embedded(given, own=True)
        if layer == self.depth:
            asking = None  # `middle` is the last states, of all tokens
        some = None if asking is None else (packing, asking)
        visible = Full() if packing.whole else packing
        states, middle = stack.run(embedded, visible, self.training, layer, some)
        if middle is not None and not packing.whole:
            middle = packing.unpack(middle)
        if asking is not None:
            # Apart, their gradient needs neither zeros for the other states nor a sum with theirs.
            first = take_rows(states.squeeze(0), asking.offsets[: packing.texts].long())
            padded = asking.put_back(states, packing.texts, packing.length)
            return Encoded(padded, middle, taken=first)
        return Encoded(states if packing.whole else packing.unpack(states), middle)

    def embed(self, input_ids: Tensor, packing: Packing | None = None) -> Tensor:
        """The input of the first layer [batch, length, width]: words, positions, types, normed.

        With a packing, which needs a backbone that `asks_for_some`: a stream [1, tokens, width].
        """
        given = {"input_ids": input_ids}
        own = self._fused() is not None
        return self._embedded(given if packing is None else self._packed(given, packing), own)

    def _embedded(self, given: dict[str, Tensor], own: bool) -> Tensor:
        parts = self.encoder.embeddings
        if not own or "token_type_ids" in given:
            return self.to_width(parts(**given))
        words = parts.word_embeddings(given["input_ids"])
        places = given.get("position_ids")
        if places is None:
            places = position_numbers(given["input_ids"], self._position_padding)
        positions = parts.position_embeddings(places).expand_as(words)
        types = getattr(parts, "token_type_embeddings", None)  # DistilBERT has none
        first = None if types is None else types.weight[0]
        rate = parts.dropout.p if self.training else 0.0
        dtype = kernel_type(words)
        return self.to_width(
            drop_add_norm(words, first, positions, parts.LayerNorm, rate, dtype, after=True)[0]
        )

    def embed_first(self, vectors: Tensor) -> Tensor:
        """Embeds the vectors [rows, embedding width] as each text's first token."""
        embedded = self.encoder.embeddings(input_ids=None, inputs_embeds=vectors[:, None])
        return self.to_width(embedded)[:, 0]

    def position_embeddings(self, input_ids: Tensor) -> Tensor | None:
        """The position embeddings that `embed` adds, [length, width] or [batch, length, width].

        None where positions are not embedded (ModernBERT rotates queries and keys instead).
        """
        table = getattr(self.encoder.embeddings, "position_embeddings", None)
        if table is None:
            return None
        return self.to_width(table(position_numbers(input_ids, self._position_padding)))

    def to_width(self, vectors: Tensor) -> Tensor:
        """Vectors of the word-embedding space [..., embedding width] at the states' width."""
        projection = getattr(self.encoder, "embeddings_project", None)
        return vectors if projection is None else projection(vectors)

    def predict(self, states: Tensor) -> Prediction:
        """The head's prediction from any hidden states [..., width]."""
        assert self.has_head, "loaded without a head"
        return predict(self.model, states, self._fused() is not None)

    @property
    def vocabulary_bias(self) -> Tensor | None:
        """The bias that the head adds to the logit of each term; None without one."""
        bias: Tensor | None = self.model.get_output_embeddings().bias
        return bias

    def head(self, states: Tensor) -> Tensor:
        """Vocabulary logits of any hidden states [..., width]."""
        return self.predict(states).logits()

    def freeze_head(self) -> None:
        """Takes the head's own parameters (not the tied embeddings) out of training."""
        for name, parameter in self.model.named_parameters():
            if self.has_head and not name.startswith(f"{self.model.base_model_prefix}."):
                parameter.requires_grad_(parameter is self.word_embeddings)

    def save(self, folder: Path) -> None:
        """Writes weights (safetensors) and configuration as AutoModel reads them."""
        # A rate chosen for this training is not the model's: the next stage starts from its own.
        chosen = {name: getattr(self.config, name) for name in self.own_dropout}
        set_values(self.config, self.own_dropout)
        try:
            with quiet(), with_pooler(self.model):
                self.model.save_pretrained(str(folder))
        finally:
            set_values(self.config, chosen)

    def restore(self, folder: Path) -> None:
        """Loads weights written by `save` into this very model."""
        from safetensors.torch import load_file

        state = load_file(folder / "model.safetensors")
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        unexpected = [key for key in unexpected if not key.startswith("pooler.")]  # set aside
        if unexpected or set(missing) - self.model.all_tied_weights_keys.keys():
            raise MismatchError(
                f"the weights of the checkpoint {str(folder)!r} are not this model's: "
                f"{[*unexpected, *missing][:3]}",
                "train again in another --output",
            )


def new_backbone(
    size: str, vocabulary: int, pad_id: int, max_length: int = 512, seed: int = 0
) -> Backbone:
    """A BERT with a masked-LM head and random weights, the same for the same seed."""
    from transformers import BertConfig, BertForMaskedLM

    layers, width = shape_of(size)
    config: Any = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=max_length,
        pad_token_id=pad_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Backbone(BertForMaskedLM(config))
