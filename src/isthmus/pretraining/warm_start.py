"""What an earlier run left beside its encoder, taken over part by part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from isthmus.errors import InputError
from isthmus.progress import notice

# Weights by name: PLACE.CLASS.NAME, the place bottleneck, decoder or the name of an objective.
State = Mapping[str, Tensor]


def stored(file: Path) -> dict[str, Tensor]:
    """The weights in a file; none where there is none."""
    if not file.is_file():
        return {}
    try:
        with safe_open(file, framework="pt") as weights:
            return {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(
            f"{file} cannot be read: {error}",
            "copy it again, or remove it: its parts are then trained from scratch",
        ) from error


def alike(one: State, other: State) -> bool:
    """Whether both have the same names and shapes."""
    return _shapes(one) == _shapes(other)


def overwrite(wanted: State, found: State) -> None:
    """Overwrites the wanted weights, in place, by those found."""
    with torch.no_grad():
        for name, value in wanted.items():
            value.copy_(found[name])


def take_over(wanted: State, file: Path) -> None:
    """Copies each part that the file holds alike, and says which those are, and why not others."""
    parts, earlier = _by_part(wanted), _by_part(stored(file))
    for part, state in parts.items():
        found = earlier.pop(part, {})
        if alike(state, found):
            overwrite(state, found)
            notice(f"the {part} goes on from {file}")
        else:
            notice(f"the {part} starts anew: {_why(state, found, file)}")
    for part in earlier:
        notice(f"the {part} in {file} is not used: this recipe has none with weights")


def _why(state: State, found: State, file: Path) -> str:
    if not found:
        return f"{file} holds none"
    if (own := _kind(state)) != (other := _kind(found)):
        return f"that in {file} is {other}, this one {own}"
    return f"that in {file} has another shape"


def _kind(state: State) -> str:
    """The name of a part in recipes: ProjectedCls is projected_cls."""
    _, _, rest = next(iter(state)).partition(".")
    return re.sub(r"(?<!^)(?=[A-Z])", "_", rest.partition(".")[0]).lower()


def _shapes(state: State) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in state.items()}


def _by_part(state: State) -> dict[str, State]:
    """Bottleneck, decoder, and the head that some decoders have of their own."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        part = "decoder's head" if ".own_head." in name else name.partition(".")[0]
        parts.setdefault(part, {})[name] = value
    return dict(parts)
