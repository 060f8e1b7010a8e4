"""torch.compile for layers that our kernels do not cover, one kind of layer at a time."""

from __future__ import annotations

import torch
from torch import nn

from isthmus.nn.backbone import Backbone
from isthmus.nn.layers import Layer

# Kinds of layers, lengths, full and padded batches: each is compiled once, and beyond this number
# torch would run layers uncompiled, with one warning.
_VARIANTS = 64


def compile_layers(module: nn.Module, backend: str = "inductor") -> None:
    """Compiles every layer of the encoders and decoders in a module at its first call.

    Layers that run on our kernels are never called, hence not compiled. Not the module as a whole:
    layers of one kind share what was compiled for the first, which takes seconds instead of
    minutes, and what lies between them (masking, packing, heads on chosen rows) depends on the
    data. Weights, their names and hooks on a layer stay as they are.
    """
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _VARIANTS)
    for part in module.modules():
        if isinstance(part, Layer):
            part.plain = torch.compile(part.plain, backend=backend)  # type: ignore[method-assign]
        elif isinstance(part, Backbone):
            for layer in part.layers:
                layer.forward = torch.compile(layer.forward, backend=backend)
