"""The list of all settings in a class: each with its path, value, allowed values and meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from isthmus.config.settings import allowed_values, inner_model


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as `--set PATH=VALUE` and recipes take it, and where its value comes from."""

    path: str
    value: str
    values: str
    meaning: str
    source: str = "default"


def settings_in(
    model: type[BaseModel],
    under: str = "",
    given: BaseModel | None = None,
    layers: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[Setting]:
    """The settings of a class, with the values of `given` where there is such an instance.

    `layers` are the values that sources (a recipe, the command line) give, later ones over earlier.
    """
    for name, field in model.model_fields.items():
        path = f"{under}{name}"
        if given is not None:
            value = getattr(given, name)
        else:
            value = ... if field.is_required() else field.get_default(call_default_factory=True)
        inner = inner_model(field)
        meaning = field.description or ((inner.__doc__ or "").partition("\n")[0] if inner else "")
        sources = [source for source, values in (layers or {}).items() if _holds(values, path)]
        written, source = _written(value), sources[-1] if sources else "default"
        if isinstance(value, Mapping) and value:
            yield from _entries(path, value, meaning, layers or {})
        else:
            yield Setting(path, written, allowed_values(field), meaning, source)
        if inner is not None:
            nested = value if isinstance(value, BaseModel) else None
            yield from settings_in(inner, f"{path}.", nested, layers)


def _entries(
    path: str, value: Any, meaning: str, layers: Mapping[str, Mapping[str, Any]]
) -> Iterator[Setting]:
    """The values in a free mapping, each under its own path."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _entries(f"{path}.{name}", inner, meaning, layers)
        return
    sources = [source for source, values in layers.items() if _holds(values, path)]
    source = sources[-1] if sources else "default"
    yield Setting(path, _written(value), type(value).__name__, meaning, source)


def _holds(values: Any, path: str) -> bool:
    """Whether nested values say anything at a dotted path."""
    for name in path.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return False
        values = values[name]
    return True


def _written(value: Any) -> str:
    """A value as one would write it after `--set PATH=`."""
    if value is ...:
        return "required"
    if isinstance(value, BaseModel):
        return "as below"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
