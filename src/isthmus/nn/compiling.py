"""Layers whose operations are fused: torch.compile, for one kind of layer at a time."""

from __future__ import annotations

from torch import nn

from isthmus.nn.backbone import Backbone
from isthmus.nn.layers import Layer


def compile_layers(module: nn.Module, backend: str = "inductor") -> None:
    """Has every layer of the encoders and decoders below a module compiled when it is called.

    Not the module as a whole: layers of one kind share what was compiled for the first, which takes
    seconds instead of minutes, and what lies between them (masking, packing, heads that work on
    chosen rows) depends on the data. Weights and their names stay as they are.
    """
    for part in module.modules():
        if isinstance(part, Layer):
            part.compile(backend=backend)
        elif isinstance(part, Backbone):
            for layer in part.layers:
                layer.compile(backend=backend)
