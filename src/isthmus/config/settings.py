"""Strict typed settings: the base of every settings model in the project."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    Union,
    cast,
    get_args,
    get_origin,
)

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from isthmus.config.recipes import Overrides, resolve
from isthmus.errors import InputError, SettingsError, choices, shown

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # the same, and no private module


_only_resolved = False


class ResolvedSettings(Exception):  # noqa: N818 (what was asked for, and no error)
    """The settings of a call, and what each of their sources says, later ones over earlier."""

    def __init__(self, settings: Settings, layers: dict[str, dict[str, Any]]) -> None:
        super().__init__()
        self.settings, self.layers = settings, layers


@contextmanager
def only_resolved() -> Iterator[None]:
    """Within the block, the first settings of a call are raised as `ResolvedSettings`."""
    global _only_resolved
    _only_resolved = True
    try:
        yield
    finally:
        _only_resolved = False


def only_shown() -> bool:
    """Whether settings are to be raised as `ResolvedSettings`."""
    return _only_resolved


def layers_of(
    verb: str, recipe: str | None, flags: Mapping[str, Any] | None, overrides: Overrides
) -> dict[str, dict[str, Any]]:
    """What each source of settings says, later ones over earlier."""
    return {
        f"recipe {recipe}": resolve(verb, recipe) if recipe else {},
        "command line": resolve(verb, None, flags),
        "--set": resolve(verb, None, None, overrides),
    }


class _Explaining(ModelMetaclass):
    """Explains what a class was wrongly called with, as `parse` does for a recipe.

    A metaclass, because an `__init__` of our own would also run for the settings inside others.
    """

    def __call__(self, *arguments: Any, **values: Any) -> Any:
        try:
            return super().__call__(*arguments, **values)
        except ValidationError as error:
            model = cast(type[BaseModel], self)
            raise _explain(model, error, f"{self.__name__}(…)", "") from None


class Settings(BaseModel, metaclass=_Explaining):
    """A frozen model that refuses unknown keys and converts no types."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    verb: ClassVar[str] = ""
    """The verb whose settings these are, if they are all of one."""

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str, under: str = "") -> Self:
        """The settings these values spell, or a SettingsError naming the first wrong one.

        `under` is the path at which the values stand in a recipe, if not at its top.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise _explain(cls, error, where, under) from None

    @classmethod
    def with_names(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values, with a name in capitals for each text that is required and not given."""
        required = (name for name, field in cls.model_fields.items() if field.is_required())
        texts = (name for name in required if cls.model_fields[name].annotation is str)
        return {**{name: name.upper() for name in texts}, **values}

    @classmethod
    def given(
        cls,
        settings: Self | Overrides,
        flags: Mapping[str, Any] | None = None,
        recipe: str | None = None,
    ) -> Self:
        """The settings of a call: a recipe's, the arguments of the call over them, then `settings`.

        `settings` are an instance, a mapping of names or dotted paths to values, or PATH=VALUE
        strings as --set takes them. Arguments that are None were not given.
        """
        if isinstance(settings, cls):
            if recipe is None and all(value is None for value in (flags or {}).values()):
                return settings
            overrides: Overrides = settings.model_dump(exclude_unset=True)
        elif (
            settings is None
            or isinstance(settings, list | tuple)
            or (isinstance(settings, Mapping) and all(isinstance(key, str) for key in settings))
        ):
            overrides = settings
        else:
            kind = "a key is no name"
            if not isinstance(settings, Mapping):
                kind = f"it is of type {type(settings).__name__}"
            called = cls.verb.replace(" ", ".")
            raise SettingsError(
                f"settings = {shown(settings)} of isthmus.{called}() cannot be used: {kind}",
                f"write settings={{…}} or settings={cls.__name__}(…)",
                ", ".join(cls.model_fields),
            )
        where = f"isthmus {cls.verb}" if recipe is None else f"recipe {recipe}"
        try:
            values = resolve(cls.verb, recipe, flags, overrides)
            if only_shown():
                layers = layers_of(cls.verb, recipe, flags, overrides)
                raise ResolvedSettings(cls.parse(cls.with_names(values), where), layers)
            return cls.parse(values, where)
        except SettingsError as error:
            over = resolve(cls.verb, None, None, overrides)
            for name in (name for name, value in (flags or {}).items() if value is not None):
                if name not in over:  # what was wrong was the flag's
                    said = f"in the recipe or with --set {name}=…"
                    given = (
                        "that was given"
                        if "." in name
                        else f"of {'-' if len(name) == 1 else '--'}{name.replace('_', '-')}"
                    )
                    error.fix = error.fix.replace(said, given)
            raise


def _explain(
    model: type[BaseModel], error: ValidationError, where: str, under: str
) -> SettingsError:
    details = error.errors(include_url=False)
    first = details[0]
    names, owner, field = _locate(model, first["loc"])
    others = {tuple(_locate(model, detail["loc"])[0]) for detail in details} - {tuple(names)}
    more = f" (and {len(others)} more)" if others else ""
    path = ".".join([*([under] if under else []), *names])
    place = f"{where}: " if where else ""
    if first["type"] == "extra_forbidden":
        return SettingsError(
            f"{place}unknown key {path!r}{more}",
            "correct the spelling or remove the key" + _all_settings(model),
            choices(names[-1], owner.model_fields),
        )
    if first["type"] == "missing":
        return SettingsError(
            f"{place}{path!r} is missing{more}",
            f"give it on the command line, in the recipe, or with --set {path}=…",
            _expected(owner, field),
        )
    message = first["msg"].removeprefix("Value error, ")
    inner = inner_model(field) if field else model
    if first["type"] == "value_error" and inner is not None:  # several values disagree
        return SettingsError(
            f"{place}{path or 'the settings'} cannot be used: {message}{more}",
            "change one of these values in the recipe or with --set PATH=…",
            ", ".join(inner.model_fields),
        )
    # A check of ours says itself what it expects.
    expected = "" if first["type"] == "value_error" else _expected(owner, field)
    if first["type"] == "literal_error":
        spelt = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        expected = choices(shown(first["input"]).strip("'"), spelt)
    return SettingsError(
        f"{place}{path or 'the settings'} = {shown(first['input'])} cannot be used: "
        f"{message}{more}",
        f"change the value in the recipe or with --set {path or 'PATH'}=…",
        expected,
    )


def _locate(
    model: type[BaseModel], location: tuple[int | str, ...]
) -> tuple[list[str], type[BaseModel], FieldInfo | None]:
    """The part of a location that a user wrote, the innermost model on it, and its field there."""
    names: list[str] = []
    owner: type[BaseModel] = model
    field: FieldInfo | None = None
    for part in location:
        if field is not None:
            inner = inner_model(field)
            if inner is None:
                # Inside a free mapping or list every part is the user's; elsewhere pydantic adds
                # which member of a union it tried.
                if not re.search(r"dict|list", str(field.annotation)):
                    break
                names.append(str(part))
                continue
            owner = inner
        names.append(str(part))
        field = owner.model_fields.get(str(part))
        if field is None:
            break
    return names, owner, field


def inner_model(field: FieldInfo) -> type[BaseModel] | None:
    """The settings that a field holds as a mapping of their own; None where it holds a value."""
    candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
    found = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
    return found[0] if found else None


def _expected(owner: type[BaseModel], field: FieldInfo | None) -> str:
    if field is None:
        return ", ".join(owner.model_fields)
    inner = inner_model(field)
    if inner is not None:
        return f"a mapping with the keys {', '.join(inner.model_fields)}"
    kind = _kind(field.annotation)  # pydantic's own message says which bound is passed
    return f"{kind}: {field.description}" if field.description else kind


def _all_settings(model: type[BaseModel]) -> str:
    verb = model.verb if issubclass(model, Settings) else ""
    return f"; all of them: isthmus {verb} --show-settings" if verb else ""


def allowed_values(field: FieldInfo) -> str:
    """The type or the choices of a field, with the bounds of a number."""
    return _kind(field.annotation) + _bounds(field.metadata)


def _bounds(metadata: Iterable[Any]) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    found = [
        f"{sign} {getattr(bound, name):,}"
        for bound in metadata
        for name, sign in signs.items()
        if getattr(bound, name, None) is not None
    ]
    return f" ({', '.join(found)})" if found else ""


def _kind(annotation: Any) -> str:
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_kind(member) for member in get_args(annotation))
    if get_origin(annotation) is Literal:
        return ", ".join(str(value) for value in get_args(annotation))
    if annotation is NoneType:
        return "null"
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        bounds = [bound for about in metadata for bound in getattr(about, "metadata", [about])]
        return _kind(inner) + _bounds(bounds)
    if get_origin(annotation) in (list, tuple):
        return f"list of {_kind(get_args(annotation)[0])}"
    if get_origin(annotation) is dict or (
        isinstance(annotation, type) and issubclass(annotation, BaseModel)
    ):
        return "mapping"
    return str(getattr(annotation, "__name__", annotation))


def check_arguments(
    verb: str, texts: Mapping[str, object], optional: Mapping[str, object] | None = None
) -> None:
    """Raises on an argument that is neither a text nor a path; optional ones may be None."""
    given = {name: value for name, value in (optional or {}).items() if value is not None}
    for name, value in {**texts, **given}.items():
        if not isinstance(value, str | PathLike):
            raise InputError(
                f"{name} = {shown(value)} of isthmus.{verb}() is of type {type(value).__name__}, "
                "not a text or path",
                f"write {name}=str(…), or call {verb} once for each",
            )
