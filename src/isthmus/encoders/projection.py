"""What sentence-transformers puts between pooling and vector: Dense, LayerNorm and Normalize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from isthmus.config.model_files import damaged, model_file, read_model_json
from isthmus.errors import InputError, choices

_WEIGHTS = "model.safetensors"
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.LeakyReLU, nn.ELU)
}
_VECTOR, TOKENS = "sentence_embedding", "token_embeddings"


class Dense(nn.Module):
    """activation(W x + b), and x added where there is a residual connection."""

    def __init__(self, weights: Mapping[str, Tensor], activation: str, residual: bool) -> None:
        super().__init__()
        width, inputs = weights["linear.weight"].shape
        self.linear = nn.Linear(inputs, width, bias="linear.bias" in weights)
        self.activation = _ACTIVATIONS[activation]()
        self.residual = None
        if residual:
            square = inputs == width
            self.residual = nn.Identity() if square else nn.Linear(inputs, width, bias=False)
        self.load_state_dict(dict(weights))

    def forward(self, vectors: Tensor) -> Tensor:
        """The vectors in their new space."""
        found: Tensor = self.activation(self.linear(vectors))
        return found if self.residual is None else found + self.residual(vectors)

    def config(self) -> dict[str, Any]:
        """The configuration that sentence-transformers reads."""
        kind = type(self.activation)
        return {
            "in_features": self.linear.in_features,
            "out_features": self.linear.out_features,
            "bias": self.linear.bias is not None,
            "activation_function": f"{kind.__module__}.{kind.__name__}",
            **({} if self.residual is None else {"use_residual": True}),
        }


class LayerNorm(nn.Module):
    """Vectors of mean 0 and variance 1, then scaled and shifted."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(len(weights["norm.weight"]))
        self.load_state_dict(dict(weights))

    def forward(self, vectors: Tensor) -> Tensor:
        """The normed vectors."""
        found: Tensor = self.norm(vectors)
        return found

    def config(self) -> dict[str, Any]:
        """The configuration that sentence-transformers reads."""
        return {"dimension": len(self.norm.weight)}


class Normalize(nn.Module):
    """Vectors of length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        """The vectors, each over its length."""
        return functional.normalize(vectors, dim=1)

    def config(self) -> dict[str, Any]:
        """Nothing: it has no settings."""
        return {}


class Projection(nn.Sequential):
    """The modules after pooling, in order; computed in float32, whatever the backbone is in."""

    def forward(self, vectors: Tensor) -> Tensor:
        """The vectors after the last module."""
        with torch.autocast(vectors.device.type, enabled=False):
            for module in self:
                vectors = module(vectors)
        return vectors

    @property
    def dimension(self) -> int | None:
        """The width of what comes out; None where that is the width of what goes in."""
        widths = [one.linear.out_features for one in self if isinstance(one, Dense)]
        return widths[-1] if widths else None

    def described(self) -> list[tuple[str, dict[str, Any]]]:
        """The name and the configuration of each module, as sentence-transformers has them."""
        return [(type(one).__name__, one.config()) for one in self]  # type: ignore[operator]

    def state(self) -> dict[str, Tensor]:
        """Every weight, under a name that tells how it is used."""
        return {
            f"{number} {self.described()[number]}.{name}": tensor
            for number, module in enumerate(self)
            for name, tensor in (module.state_dict() or {"": torch.empty(0)}).items()
        }

    def save(self, folder: Path, paths: Sequence[str]) -> None:
        """Writes the weights of each module into its own folder of these."""
        for module, path in zip(self, paths, strict=True):
            if weights := module.state_dict():
                whole = {key: one.contiguous() for key, one in weights.items()}
                save_file(whole, folder / path / _WEIGHTS)

    def restore(self, folder: Path, paths: Sequence[str]) -> None:
        """Loads what `save` wrote."""
        for module, path in zip(self, paths, strict=True):
            if module.state_dict():
                module.load_state_dict(load_file(folder / path / _WEIGHTS))


def load_projection(
    folder: str, listed: Sequence[tuple[str, str]], width: int, tokens: bool = False
) -> Projection | None:
    """The modules of these kinds and paths for vectors of a width; None where there are none.

    With `tokens`, they are those of a model that has a vector for each token.
    """
    found: list[nn.Module] = []
    for kind, path in listed:
        module = _load(folder, kind, path, TOKENS if tokens else _VECTOR)
        taken, given = width, width
        if isinstance(module, Dense):
            taken, given = module.linear.in_features, module.linear.out_features
        elif isinstance(module, LayerNorm):
            taken = len(module.norm.weight)
        if taken != width:
            why = f"it takes vectors of {taken:,} numbers, and gets {width:,}"
            raise damaged(folder, f"{path}/{_WEIGHTS}", why)
        found.append(module)
        width = given
    return Projection(*found) if found else None


def _load(folder: str, kind: str, path: str, works_on: str) -> nn.Module:
    file = f"{path}/config.json"
    about = read_model_json(folder, file, dict) or {}
    # Where it says nothing, a Dense module works on what the model is made of.
    reads = about.get("module_input_name") or (works_on if kind == "Dense" else _VECTOR)
    for found in (reads, about.get("module_output_name") or reads):
        if found != works_on:
            raise InputError(
                f"{folder}/{file}: {kind} works on {found!r:.60}, not on {works_on}",
                "choose a model whose modules all work on that",
            )
    if kind == "Normalize":
        return Normalize()
    weights = _weights(folder, path)
    try:
        if kind == "LayerNorm":
            return LayerNorm(weights)
        return Dense(weights, _activation(folder, file, about), about.get("use_residual") is True)
    except (KeyError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise damaged(
            folder, f"{path}/{_WEIGHTS}", f"these are not its weights: {reason}"
        ) from None


def _activation(folder: str, file: str, about: Mapping[str, Any]) -> str:
    """The name of a known activation: a path in a configuration is never imported."""
    stated = about.get("activation_function", "torch.nn.modules.activation.Tanh")
    start, _, name = str(stated).rpartition(".")
    if not start.startswith("torch.nn") or name not in _ACTIVATIONS:
        raise InputError(
            f"{folder}/{file}: the activation of a Dense module is {stated!r:.80}",
            "choose a model with one of these activations of torch.nn: code inside a model is "
            "never run",
            choices(name, _ACTIVATIONS),
        )
    return name


def _weights(folder: str, path: str) -> dict[str, Tensor]:
    file = model_file(folder, f"{path}/{_WEIGHTS}")
    if file is None:
        raise InputError(
            f"the module {folder}/{path} has no {_WEIGHTS}",
            "copy the complete folder of the model again; convert pickled weights "
            "(pytorch_model.bin): SentenceTransformer(…).save_pretrained(…) writes safetensors",
        )
    try:
        weights = {key: one.float() for key, one in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise damaged(folder, f"{path}/{_WEIGHTS}", str(error)) from None
    if not all(one.isfinite().all() for one in weights.values()):
        raise damaged(folder, f"{path}/{_WEIGHTS}", "it holds numbers that are not finite")
    return weights
