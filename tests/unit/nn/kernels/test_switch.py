"""One switch turns every kernel off."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isthmus.nn.kernels
from isthmus.nn.heads import Prediction
from isthmus.nn.kernels import available, short_attention
from isthmus.nn.kernels.bert_layer import PostNorm, Rates
from isthmus.nn.kernels.norm_gelu import bias_gelu, drop_add_norm
from isthmus.nn.packing import Packing

HALF = torch.bfloat16


class Launched(Exception):
    """A kernel was wanted."""


class Forbidden(ModuleType):
    """Stands where a module of kernels was."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("__") else Launched(f"{self.__name__}.{name}")


@pytest.fixture(autouse=True)
def no_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """This device runs kernels, and each of them raises, with Triton and without."""
    monkeypatch.setattr(available, "KERNELS", True)
    for module in (available, short_attention):
        monkeypatch.setattr(module, "has_triton", lambda *_: available.KERNELS)
    for module in pkgutil.iter_modules(isthmus.nn.kernels.__path__):
        if module.name.endswith("_triton"):
            forbidden = Forbidden(f"isthmus.nn.kernels.{module.name}")
            monkeypatch.setitem(sys.modules, forbidden.__name__, forbidden)
            monkeypatch.setattr(isthmus.nn.kernels, module.name, forbidden, raising=False)


def norm() -> Tensor:
    return drop_add_norm(torch.ones(3, 8, dtype=HALF), None, None, nn.LayerNorm(8), 0.1)[0]


def gelu() -> Tensor:
    return bias_gelu(torch.ones(3, 8, dtype=HALF), torch.ones(8))


def layer() -> Tensor:
    linear = [nn.Linear(16, 16).to(HALF) for _ in range(6)]
    norms = [nn.LayerNorm(16).to(HALF) for _ in range(2)]
    modules = PostNorm(*linear[:4], norms[0], *linear[4:], norms[1])
    packing = Packing.of(torch.tensor([[1, 1, 1], [1, 0, 0]]))
    states = torch.ones(1, 4, 16, dtype=HALF)
    return modules.run(states, states, packing, 2, Rates())[0]


def prediction(*tokens: int) -> Prediction:
    shapes = (*tokens, 8), (24, 8), (24,)
    return Prediction(*(torch.ones(shape, dtype=HALF) for shape in shapes))


def cross_entropy() -> Tensor:
    return prediction(3).cross_entropy(torch.tensor([1, -100, 2]))


def bag_cross_entropy() -> Tensor:
    return prediction(2).bag_cross_entropy(
        torch.ones(2, 24, dtype=torch.bool), torch.tensor([24, 24])
    )


def lexicon() -> Tensor:
    return prediction(2, 3).largest(torch.ones(2, 3, dtype=torch.bool))


every_choice = pytest.mark.parametrize(
    "compute", [norm, gelu, layer, cross_entropy, bag_cross_entropy, lexicon]
)


@every_choice
def test_on_kernels_are_launched(compute: Callable[[], Tensor]) -> None:
    with pytest.raises(Launched), available.kernels_allowed(True):
        compute()


@every_choice
def test_off_none_is_launched(compute: Callable[[], Tensor]) -> None:
    with available.kernels_allowed(False):
        assert compute().numel()
    assert available.KERNELS, "as before"
