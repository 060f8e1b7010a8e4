"""Strict typed settings: the base of every settings model in the project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from isthmus.errors import SettingsError, choices


class Settings(BaseModel):
    """A frozen model that knows every key it accepts and converts no types behind one's back."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_default=True, protected_namespaces=()
    )

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str) -> Self:
        """The settings these values spell, or a SettingsError naming the first wrong one."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise _explain(cls, error, where) from None


def _explain(model: type[BaseModel], error: ValidationError, where: str) -> SettingsError:
    details = error.errors(include_url=False)
    first = details[0]
    path = ".".join(str(part) for part in first["loc"])
    place = f"{where}: {path}" if path else where
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    if first["type"] == "extra_forbidden":
        known = _keys_at(model, first["loc"][:-1])
        key = str(first["loc"][-1])
        return SettingsError(
            f"unknown key {path!r}{more}",
            where=place,
            allowed=choices(key, known),
            remedy="correct the spelling or remove the key",
        )
    if first["type"] == "missing":
        return SettingsError(
            f"{path!r} is missing{more}",
            where=place,
            allowed=_allowed(model, first),
            remedy=f"give it in the recipe, as a flag, or with --set {path}=…",
        )
    message = first["msg"].removeprefix("Value error, ")
    return SettingsError(
        f"{path or model.__name__} = {first['input']!r} cannot be used: {message}{more}",
        where=place,
        allowed=_allowed(model, first),
        remedy=f"change the value in the recipe or with --set {path or 'key'}=…",
    )


def _keys_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The keys a model accepts below a path, as far as plain nesting can tell."""
    current = model
    for part in path:
        field = current.model_fields.get(str(part))
        inner = field.annotation if field else None
        candidates = [inner, *getattr(inner, "__args__", ())]
        found = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not found:
            break
        current = found[0]
    return list(current.model_fields)


def _allowed(model: type[BaseModel], detail: ErrorDetails) -> str:
    expected = detail.get("ctx", {}).get("expected")
    if expected:
        return str(expected)
    keys = _keys_at(model, detail["loc"][:-1])
    current: type[BaseModel] = model
    for part in detail["loc"][:-1]:
        field = current.model_fields.get(str(part))
        if field and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            current = field.annotation
    field = current.model_fields.get(str(detail["loc"][-1])) if detail["loc"] else None
    if field is not None:
        kind = getattr(field.annotation, "__name__", None) or str(field.annotation)
        return f"{kind}: {field.description}" if field.description else str(kind)
    return ", ".join(keys) or "see the documentation"
