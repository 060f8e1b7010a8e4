"""One face for every Hugging Face encoder: hidden states, and a head that runs on chosen rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.config.model_files import load_pretrained, loadable
from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.nn.attention import Attention, use_packable_attention
from isthmus.nn.dropout import use_quick_dropout
from isthmus.nn.fused import bias_gelu, drop_add_norm, has_kernels
from isthmus.nn.packing import Asking, Full, Packing, take_rows
from isthmus.nn.post_norm import PostNormStack
from isthmus.nn.prediction import Prediction
from isthmus.nn.pretrained import (
    explained,
    load_seeded,
    load_weights,
    loading_options,
    quiet,
    replace_dropout,
    set_values,
)
from isthmus.nn.projection import rounded_type
from isthmus.progress import notice

# The modules that, applied in order, turn hidden states into vocabulary logits. transformers
# gives no common name to an MLM head, and calling the whole model would compute logits for every
# position. tests/parity holds each row against the model's own logits.
_HEADS: dict[str, tuple[str, ...]] = {
    "bert": ("cls",),
    "distilbert": ("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
    "roberta": ("lm_head",),
    "xlm-roberta": ("lm_head",),
    "camembert": ("lm_head",),
    "mpnet": ("lm_head",),
    "electra": ("generator_predictions", "generator_lm_head"),
    "modernbert": ("head", "decoder"),
}
# In some of them: where a matrix and, behind GELU, a norm are, before the vocabulary.
_LM_HEAD = "lm_head.dense", "lm_head.layer_norm"
_TRANSFORMS: dict[str, tuple[str, str]] = {
    "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),
    "camembert": _LM_HEAD,
    "distilbert": ("vocab_transform", "vocab_layer_norm"),
    "electra": ("generator_predictions.dense", "generator_predictions.LayerNorm"),
    "roberta": _LM_HEAD,
    "xlm-roberta": _LM_HEAD,
}


class Encoded(NamedTuple):
    """The states of a padded batch, those after a layer that was asked for, and what came along."""

    states: Tensor
    middle: Tensor | None = None
    output: Any = None  # what the model of transformers gave for the batch as it is
    taken: Tensor | None = None  # the first of every text, where they are not taken from all

    @property
    def first(self) -> Tensor:
        """The states of every text's first token, [batch, width]; where some ask, these do too."""
        return self.states[:, 0] if self.taken is None else self.taken


class Backbone(nn.Module):
    """An encoder, with its masked-LM head where it has one."""

    _several_types: ClassVar[bool] = False  # whether a text has parts of another type

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        use_quick_dropout(model)
        types = getattr(
            getattr(model.base_model, "embeddings", None), "token_type_embeddings", None
        )
        if types is not None and not self._several_types:
            types.__class__ = _FirstType
        self.packs = use_packable_attention(model)  # whether the encoder can do without padding
        self.use_packing = True
        self.use_kernels = True
        self.own_layers = PostNormStack.of(model) if self.packs else None
        self.head_modules = _head_modules(model)
        if self.head_modules is not None:
            model.get_output_embeddings().__class__ = _VocabularyLayer
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
            seed: Of the fresh head's weights.
            attention: How it is computed; by default, whatever trains faster on this machine.

        """
        from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

        with quiet(), explained(name):
            config = load_pretrained(AutoConfig, name)
            if config.model_type not in _HEADS:
                raise InputError(
                    f"{name!r} is a {config.model_type!r} model, which isthmus does not know",
                    where=name,
                    allowed=", ".join(sorted(_HEADS)),
                    remedy="choose an encoder of one of these architectures",
                )
            own_dropout = replace_dropout(config, dropout)
            options = loading_options(config, attention)
            model, missing = load_seeded(AutoModelForMaskedLM, name, options, seed)
            without_head = _missing_head(model, missing)
            if without_head and head == "add" and not config.tie_word_embeddings:
                # Untied, the vocabulary's matrix would have to be learnt from noise.
                config.tie_word_embeddings = True
                model, _ = load_seeded(AutoModelForMaskedLM, name, options, seed)
            if without_head and head == "keep":
                model, _ = load_weights(AutoModel, name, options)
                _drop_pooler(model)
        if without_head and head == "add":
            notice(
                f"{name}: no masked-LM head in this checkpoint; a new one, tied to the "
                "embeddings, starts untrained."
            )
            _start_as_identity(model)
        with loadable(name):
            backbone = cls(model)
        backbone.own_dropout = own_dropout
        return backbone

    @property
    def config(self) -> Any:
        """The Hugging Face configuration."""
        return self.model.config

    @property
    def has_head(self) -> bool:
        """Whether vocabulary logits can be computed."""
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
        """From the first to the last; transformers gives them no common name."""
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
        limit = int(self.config.max_position_embeddings)
        return limit if padding is None else limit - padding - 1

    @property
    def _windows(self) -> bool:
        # ModernBERT: some layers see a few tokens to either side.
        return getattr(self.config, "sliding_window", None) is not None

    @property
    def _position_padding(self) -> int | None:
        # RoBERTa and its kin count positions from behind the padding id, and skip padding.
        embeddings = getattr(self.encoder, "embeddings", None)
        padding: int | None = getattr(embeddings, "padding_idx", None)
        return padding

    def check_length(self, length: int, setting: str) -> None:
        """Refuses a setting that allows longer texts than the model has positions for."""
        if length > self.positions:
            raise SettingsError(
                f"{setting} = {length} is more than the model has positions for",
                where=setting,
                allowed=f"at most {self.positions}",
                remedy=f"--set {setting}={self.positions}",
            )

    def check_tokens(self, tokens: int) -> None:
        """Refuses a tokenizer that knows more tokens than the model has embeddings for."""
        rows = len(self.word_embeddings)
        if tokens > rows:
            raise MismatchError(
                f"the tokenizer knows {tokens:,} tokens, the model {rows:,}",
                where="model",
                allowed="a tokenizer of at most as many tokens as the model has embeddings",
                remedy="save both from one source, or model.resize_token_embeddings(…) and save",
            )

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        tokens: Tensor | None = None,
        asking: Asking | None = None,
    ) -> Tensor:
        """H, the last hidden states [batch, length, width]; in the padding, nothing of meaning.

        `tokens`: where they are in the flattened batch, for a caller who knows without asking
        the device; otherwise the mask tells. `asking`: those whose states are read, where that
        are not all; the others' have no meaning then. The first of every text is among them.
        """
        return self.encode(input_ids, attention_mask, tokens, asking=asking).states

    def forward_with_layer(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        layer: int,
        tokens: Tensor | None = None,
        asking: Asking | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The last hidden states, and those after `layer` layers, of one encoder pass.

        After 0 layers they are what `embed` gives. ModernBERT norms its last states alone: after
        fewer layers than all, they are not normed.
        """
        assert 0 <= layer <= self.depth, f"{layer} of {self.depth} layers"
        encoded = self.encode(input_ids, attention_mask, tokens, layer=layer, asking=asking)
        assert encoded.middle is not None
        return encoded.states, encoded.middle

    @property
    def leaves_padding_out(self) -> bool:
        """Whether padding costs nothing, where packing pays."""
        return self.packs and self.use_packing

    def packing(self, attention_mask: Tensor, tokens: Tensor | None = None) -> Packing | None:
        """How a batch is freed of its padding; None where it is quicker to leave it."""
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
        """All that `forward` and `forward_with_layer` return, and what else is known then."""
        told = {"input_ids": input_ids}  # of every place
        if segments is not None:
            told["token_type_ids"] = segments
        packing = self.packing(attention_mask, tokens) if self.packs else None
        fused = self._fused()
        if packing is not None and packing.whole and not self._windows:
            if fused is not None:
                return self._run_fused(fused, told, packing, layer, asking)
            # Without any mask, torch chooses among its kernels.
            return self._run(told, layer)
        if packing is None:
            return self._run(told, layer, attention_mask=attention_mask)
        packed = self._packed(told, packing)
        if fused is not None:
            return self._run_fused(fused, packed, packing, layer, asking)
        # transformers passes on a mask of four dimensions as it is, and makes none itself.
        options = {"attention_mask": packing.present, "packing": packing}
        states, middle, *_ = self._run(packed, layer, **options)
        return Encoded(packing.unpack(states), None if middle is None else packing.unpack(middle))

    def _packed(self, told: dict[str, Tensor], packing: Packing) -> dict[str, Tensor]:
        """What is told of every place, of tokens alone, with their positions."""
        ids = told["input_ids"]
        told = {**told, "position_ids": self._places(ids).expand_as(ids)}
        return {name: packing.pack(each) for name, each in told.items()}

    def _run(self, told: dict[str, Tensor], layer: int | None, **options: Any) -> Encoded:
        """By the layers of transformers."""
        # transformers would look into the layers, and what is compiled would fall into pieces.
        seen: list[Tensor] = []
        with self._watched(layer, seen):
            output = self.encoder(**told, **options)
        last = output.last_hidden_state
        if layer is None:
            return Encoded(last, None, output)
        return Encoded(last, last if layer == self.depth else seen[0], output)

    @contextmanager
    def _watched(self, layer: int | None, seen: list[Tensor]) -> Iterator[None]:
        """Notes what goes into the layer behind so many."""

        def note(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            seen.append(given[0] if given else named["hidden_states"])

        if layer is None or layer == self.depth:
            yield
            return
        handle = self.layers[layer].register_forward_pre_hook(note, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def _fused(self) -> PostNormStack | None:
        """Layers of our own kernels, where they can be used."""
        own = self.own_layers
        if own is None or not self.use_kernels or own.checkpointed:
            return None
        return own if has_kernels(self.word_embeddings) else None

    @property
    def asks_for_some(self) -> bool:
        """Whether the last layer is spared the states that nobody reads."""
        return self.leaves_padding_out and self._fused() is not None

    def _run_fused(
        self,
        stack: PostNormStack,
        told: dict[str, Tensor],
        packing: Packing,
        layer: int | None,
        asking: Asking | None,
    ) -> Encoded:
        """By kernels of our own."""
        embedded = self._embedded(told)
        if layer == self.depth:
            asking = None  # states after the last layer, of all
        some = None if asking is None else (packing, asking)
        visible = Full() if packing.whole else packing
        states, middle = stack.run(embedded, visible, self.training, layer, some)
        if middle is not None and not packing.whole:
            middle = packing.unpack(middle)
        if asking is not None:
            # Apart: on the way back, no zeros for all the others, and no sum with theirs.
            first = take_rows(states.squeeze(0), asking.offsets[: packing.texts].long())
            padded = asking.put_back(states, packing.texts, packing.length)
            return Encoded(padded, middle, taken=first)
        return Encoded(states if packing.whole else packing.unpack(states), middle)

    def embed(self, input_ids: Tensor, packing: Packing | None = None) -> Tensor:
        """What the first layer receives [batch, length, width]: words, positions, types, normed.

        Packed, a stream [1, tokens, width]: of a backbone that `asks_for_some`.
        """
        told = {"input_ids": input_ids}
        if packing is not None:
            told = self._packed(told, packing)
        return self._embedded(told)

    def _embedded(self, told: dict[str, Tensor]) -> Tensor:
        """By one kernel, where there is one, but for looking up."""
        parts = self.encoder.embeddings
        if self._fused() is None or "token_type_ids" in told:
            return self.to_width(parts(**told))
        words = parts.word_embeddings(told["input_ids"])
        places = told.get("position_ids")
        if places is None:
            places = self._places(told["input_ids"])
        positions = parts.position_embeddings(places).expand_as(words)
        types = getattr(parts, "token_type_embeddings", None)  # DistilBERT has none
        first = None if types is None else types.weight[0]
        rate = parts.dropout.p if self.training else 0.0
        dtype = rounded_type(words)
        return self.to_width(
            drop_add_norm(words, first, positions, parts.LayerNorm, rate, dtype, after=True)[0]
        )

    def embed_first(self, vectors: Tensor) -> Tensor:
        """The same of vectors [rows, embedding width] that stand for the first word of a text."""
        embedded = self.encoder.embeddings(input_ids=None, inputs_embeds=vectors[:, None])
        return self.to_width(embedded)[:, 0]

    def position_embeddings(self, input_ids: Tensor) -> Tensor | None:
        """The position embeddings that `embed` adds, [length, width] or [batch, length, width].

        None where positions are not embedded (ModernBERT rotates queries and keys instead).
        """
        table = getattr(self.encoder.embeddings, "position_embeddings", None)
        if table is None:
            return None
        return self.to_width(table(self._places(input_ids)))

    def _places(self, input_ids: Tensor) -> Tensor:
        """The number of every position, as the model counts [length] or [batch, length]."""
        if self._position_padding is None:
            return torch.arange(input_ids.shape[1], device=input_ids.device)
        present = (input_ids != self._position_padding).long()
        return present.cumsum(1) * present + self._position_padding

    def to_width(self, vectors: Tensor) -> Tensor:
        """Vectors of the word-embedding space [..., embedding width] at the states' width."""
        projection = getattr(self.encoder, "embeddings_project", None)
        return vectors if projection is None else projection(vectors)

    def predict(self, states: Tensor) -> Prediction:
        """What the head says of any hidden states [..., width], not multiplied out yet."""
        assert self.head_modules is not None, "loaded without a head"
        vocabulary = self.model.get_output_embeddings()
        if self._fused() is not None:
            return Prediction(self._transformed(states), vocabulary.weight, vocabulary.bias)
        _VocabularyLayer.aside.now = True
        try:
            for module in self.head_modules:
                states = module(states)
        finally:
            _VocabularyLayer.aside.now = False
        return Prediction(states, vocabulary.weight, vocabulary.bias)

    def _transformed(self, states: Tensor) -> Tensor:
        """The states before the vocabulary, by kernels of our own and rounded as it takes them."""
        dense, norm = map(self.model.get_submodule, _TRANSFORMS[self.config.model_type])
        active = bias_gelu(functional.linear(states, dense.weight), dense.bias)
        return drop_add_norm(active, None, None, norm, 0.0)[0]

    @property
    def vocabulary_bias(self) -> Tensor | None:
        """What the head adds to the logit of each term, where it adds anything."""
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
            with quiet():
                self.model.save_pretrained(str(folder))
        finally:
            set_values(self.config, chosen)

    def restore(self, folder: Path) -> None:
        """Loads weights written by `save` into this very model."""
        from safetensors.torch import load_file

        state = load_file(folder / "model.safetensors")
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or ())
        if unexpected or set(missing) - tied:
            raise MismatchError(
                f"the checkpoint's weights are not this model's: {[*unexpected, *missing][:3]}",
                where=str(folder),
                allowed="a checkpoint of the same architecture",
                remedy="start anew in another --output",
            )


def _head_modules(model: Any) -> list[nn.Module] | None:
    names = _HEADS.get(model.config.model_type, ())
    # Of a classifier, there may be a part by the same name: ModernBERT's `head`.
    whole = bool(names) and all(hasattr(model, name) for name in names)
    return [getattr(model, name) for name in names] if whole else None


class _FirstType(nn.Embedding):
    """The first type for every token: one row, and its gradient a sum.

    Looked up, all tokens have the same number, whose gradients are added one after the other.
    """

    def forward(self, types: Tensor) -> Tensor:
        return self.weight[0].expand(*types.shape, -1)


class _VocabularyLayer(nn.Linear):
    """The last layer of a head, which passes on what it is given while a prediction is made."""

    aside = threading.local()  # two threads may share a model

    def forward(self, features: Tensor) -> Tensor:
        return features if getattr(self.aside, "now", False) else super().forward(features)


def _missing_head(model: Any, missing: set[str]) -> bool:
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    prefix = f"{model.base_model_prefix}."
    return any(not key.startswith(prefix) and key not in tied for key in missing)


def _start_as_identity(model: Any) -> None:
    # Tied to the embeddings, a head that changes nothing already makes sense of hidden states; a
    # random one first has to be learnt, and drags the encoder along while it is.
    for head in _head_modules(model) or ():
        for module in head.modules():
            if isinstance(module, nn.Linear) and module.in_features == module.out_features:
                nn.init.eye_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def _drop_pooler(model: Any) -> None:
    # No method here uses BERT's pooler, and a parameter without gradient breaks data parallelism.
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
