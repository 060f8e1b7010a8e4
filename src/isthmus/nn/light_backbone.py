"""An encoder of BERT's kind from its files alone, for searches of a query or two.

transformers takes seconds to import, a query milliseconds to encode.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as functional
from safetensors.torch import load_file
from torch import Tensor, nn

from isthmus.config.model_files import check_model, model_file, read_model_json, shards
from isthmus.nn.architectures import ARCHITECTURES, POST_NORM, SIZES
from isthmus.nn.backbone import Backbone
from isthmus.nn.numerics import position_numbers
from isthmus.nn.packing import Asking

_WORDS = "embeddings.word_embeddings"
_TYPES = "embeddings.token_type_embeddings"
_SKIPPING = ("camembert", "roberta", "xlm-roberta")  # whose positions are counted without padding


class LightBackbone(Backbone):
    """Hidden states by a handful of torch's functions; neither trained nor saved."""

    packs = False

    def __init__(self, config: SimpleNamespace, weights: dict[str, Tensor]) -> None:
        nn.Module.__init__(self)  # there is no model of transformers
        self._config = config
        self._known = ARCHITECTURES[config.model_type]
        self._names = list(weights)
        for name, weight in weights.items():
            self.register_buffer(_slot(name), weight)

    @classmethod
    def read(cls, name: str) -> LightBackbone | None:
        """The encoder of a folder or hub name; None where its layers compute something else."""
        check_model(name)
        stated = read_model_json(name, "config.json", dict) or {}
        kind = stated.get("model_type")
        if kind not in POST_NORM:
            return None
        known = ARCHITECTURES[kind]
        plain = stated.get("position_embedding_type", "absolute") == "absolute"
        if stated[known.activation] != "gelu" or not plain or stated.get("is_decoder"):
            return None
        sizes = {own: stated[key] for own, keys in SIZES.items() for key in keys if key in stated}
        epsilon = 1e-12 if known.norm_epsilon is None else stated[known.norm_epsilon]
        padding = stated["pad_token_id"] if kind in _SKIPPING else None
        config = SimpleNamespace(**sizes, model_type=kind, epsilon=epsilon, padding=padding)
        weights: dict[str, Tensor] = {}
        for file in shards(name) or ["model.safetensors"]:
            path = model_file(name, file)
            if path is None:
                return None
            weights |= load_file(path)
        return cls(config, _encoder_weights(weights, known.layers or ""))

    @property
    def config(self) -> Any:
        """The sizes, under the names that transformers has for BERT."""
        return self._config

    @property
    def encoder(self) -> Any:
        """The weights, as the model below the head would list them."""
        return SimpleNamespace(state_dict=lambda: {name: self._at(name) for name in self._names})

    @property
    def word_embeddings(self) -> Tensor:
        """E, the [vocabulary, embedding width] matrix of input embeddings."""
        return self._at(f"{_WORDS}.weight")

    @property
    def asks_for_some(self) -> bool:
        """False: the states of all tokens are computed."""
        return False

    @property
    def _position_padding(self) -> int | None:
        padding: int | None = self._config.padding
        return padding

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        tokens: Tensor | None = None,
        asking: Asking | None = None,
    ) -> Tensor:
        """The last hidden states [batch, length, width]."""
        states = self._embed(input_ids)
        present = attention_mask.bool()[:, None, None, :]
        for number in range(self.depth):
            states = self._layer(f"{self._known.layers}.{number}", states, present)
        return states

    def _embed(self, ids: Tensor) -> Tensor:
        embedded = functional.embedding(ids, self.word_embeddings)
        if f"{_TYPES}.weight" in self._names:
            embedded = embedded + self._at(f"{_TYPES}.weight")[0]
        places = position_numbers(ids, self._position_padding).expand_as(ids)
        table = self._at("embeddings.position_embeddings.weight")
        embedded = self._norm(
            "embeddings.LayerNorm", embedded + functional.embedding(places, table)
        )
        wider = "embeddings_project.weight" in self._names
        return self._product("embeddings_project", embedded) if wider else embedded

    def _layer(self, layer: str, states: Tensor, present: Tensor) -> Tensor:
        names = [f"{layer}.{module}" for module in self._known.layer_modules]
        *projections, output, attention_norm, expand, contract, norm = names
        heads = self.config.num_attention_heads
        batch, length, _ = states.shape
        query, key, value = (
            self._product(name, states).view(batch, length, heads, -1).transpose(1, 2)
            for name in projections
        )
        answer = functional.scaled_dot_product_attention(query, key, value, present)
        answer = self._product(output, answer.transpose(1, 2).flatten(2))
        states = self._norm(attention_norm, answer + states)
        fed = self._product(contract, functional.gelu(self._product(expand, states)))
        return self._norm(norm, fed + states)

    def _product(self, module: str, states: Tensor) -> Tensor:
        return functional.linear(states, self._at(f"{module}.weight"), self._at(f"{module}.bias"))

    def _norm(self, module: str, states: Tensor) -> Tensor:
        weight, bias = self._at(f"{module}.weight"), self._at(f"{module}.bias")
        return functional.layer_norm(states, weight.shape, weight, bias, self._config.epsilon)

    def _at(self, name: str) -> Tensor:
        return self.get_buffer(_slot(name))


def _slot(name: str) -> str:
    return name.replace(".", "/")  # a buffer has no dots in its name


def _encoder_weights(stored: dict[str, Tensor], layers: str) -> dict[str, Tensor]:
    """The weights below any head or pooler, in float32, by their names in the bare encoder."""
    words = f"{_WORDS}.weight"
    [prefix] = [key.removesuffix(words) for key in stored if key.endswith(words)]
    found = {}
    for key, weight in stored.items():
        name = key.removeprefix(prefix)
        inside = key.startswith(prefix) and name.startswith(("embeddings", f"{layers}."))
        if inside and weight.is_floating_point():  # old files hold position numbers too
            found[name] = weight.to(torch.float32)
    return found
