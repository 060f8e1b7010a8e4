"""Parts by name: a class or function that a decorator names, found without importing it.

`@objective("bag_of_words")` puts a class into the registry `OBJECTIVES` under that name. A registry
reads the names and the documentation of the parts in its module (or in the modules of its package)
from the source text: parts import torch, and listing them must not. Other distributions announce
theirs under an entry-point group of the same name as the module (`isthmus.pretraining.objectives`).
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from isthmus.errors import SettingsError, choices

Part = TypeVar("Part", bound=Callable[..., Any])


@cache
def announced() -> Any:
    """What all installed distributions announce, read once: there may be hundreds of them.

    Entry points, of which a group is selected; their class changed with Python 3.12.
    """
    return entry_points()


class _Declared(NamedTuple):
    module: str
    summary: str


class Registry:
    """The named parts that are variants of one idea, imported when one of them is needed."""

    def __init__(self, place: str, decorator: str, kind: str | None = None) -> None:
        """Names a registry.

        Args:
            place: The module or package of the parts; the entry-point group of others.
            decorator: The name under which modules import `register`.
            kind: What a part is called in a message; the decorator's name if None.

        """
        self.place = place
        self.decorator = decorator
        self.kind = kind or decorator
        self._registered: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[Part], Part]:
        """A decorator that puts a class or function into this registry under a name."""

        def registered(part: Part) -> Part:
            self._registered[name] = part
            return part

        return registered

    @cached_property
    def _declared(self) -> dict[str, _Declared]:
        """Module and summary of each part, from the source text."""
        spec = importlib.util.find_spec(self.place)
        assert spec is not None, f"no module {self.place}"
        folders = spec.submodule_search_locations
        modules = {
            f"{self.place}.{file.stem}": file
            for folder in folders or ()
            for file in Path(folder).glob("[a-z]*.py")
        }
        if not folders:
            assert spec.origin is not None, f"no source of {self.place}"
            modules = {self.place: Path(spec.origin)}
        return {
            name: _Declared(module, (ast.get_docstring(part) or "").partition("\n")[0])
            for module, file in modules.items()
            for part in ast.parse(file.read_text(encoding="utf-8")).body
            if isinstance(part, ast.ClassDef | ast.FunctionDef)
            for name in map(self._name, part.decorator_list)
            if name is not None
        }

    def _name(self, decorator: ast.expr) -> str | None:
        """The name that a decorator gives; None if it is another registry's or no registry's."""
        match decorator:
            case ast.Call(
                func=ast.Name(id=self.decorator), args=[ast.Constant(value=str(name)), *_]
            ):
                return name
        return None

    @cached_property
    def outsiders(self) -> dict[str, EntryPoint]:
        """The parts that other distributions announce, by name."""
        return {point.name: point for point in announced().select(group=self.place)}

    def names(self) -> list[str]:
        """Every public name, in alphabetical order."""
        return sorted({*self._declared, *self._registered, *self.outsiders})

    def check(self, name: str, where: str) -> None:
        """Refuses a name that nothing answers to, before anything is imported."""
        if name not in self.names():
            raise SettingsError(
                f"{where}: there is no {self.kind} named {name!r}",
                "choose one of these, or announce your own module under the entry-point group "
                f"{self.place!r}",
                choices(name, self.names()),
            )

    def load(self, name: str, where: str = "") -> Any:
        """The part itself: the class or function of this name."""
        self.check(name, where or self.kind)
        if name in self._declared:
            importlib.import_module(self._declared[name].module)
        return self._registered[name] if name in self._registered else self.outsiders[name].load()

    def summary(self, name: str) -> str:
        """The first line of the part's documentation, read without importing it."""
        self.check(name, self.kind)
        if name in self._declared:
            return self._declared[name].summary
        if name in self._registered:
            return (self._registered[name].__doc__ or "").partition("\n")[0]
        return f"from {self.outsiders[name].value}"

    def chosen(
        self, values: Mapping[str, Any], under: str, key: str
    ) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
        """Yields name, part and settings of each part that `under` names; null leaves one out.

        `key` is the setting that a bare number is taken to mean in the advice of an error.
        """
        for name, own in values.items():
            where = f"{under}.{name}"
            part = self.load(name, where)  # raises on a misspelt name, even with null
            if own is None:
                continue
            if not isinstance(own, Mapping):
                raise SettingsError(
                    f"{where} = {own!r} is no mapping",
                    f"--set {where}.{key}={own}, or null to leave it out",
                )
            yield name, part, own
