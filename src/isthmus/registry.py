"""File name = public name: finds the variants of an idea without importing them.

A registry is a package folder whose modules are the variants, plus whatever other
distributions announce under an entry-point group of the same name as the folder
(`isthmus.pretraining.objectives`, say). A module `whole_word.py` holds the class `WholeWord`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from isthmus.errors import SettingsError, choices


@cache
def announced() -> Any:
    """What all installed distributions announce, read once: there may be hundreds of them.

    Entry points, of which a group is selected; their class changed with Python 3.12.
    """
    return entry_points()


class Registry:
    """The named variants of one idea, loaded one at a time and only when needed."""

    def __init__(self, package: str, kind: str) -> None:
        self.package = package
        self.kind = kind

    @cached_property
    def _files(self) -> dict[str, Path]:
        spec = importlib.util.find_spec(self.package)
        assert spec is not None, f"no package {self.package}"
        assert spec.submodule_search_locations, f"{self.package} is not a package"
        folder = Path(next(iter(spec.submodule_search_locations)))
        return {file.stem: file for file in folder.glob("[a-z]*.py")}

    @cached_property
    def outsiders(self) -> dict[str, EntryPoint]:
        """The variants that other distributions announce, by name."""
        return {point.name: point for point in announced().select(group=self.package)}

    def names(self) -> list[str]:
        """Every public name, in alphabetical order."""
        return sorted({*self._files, *self.outsiders})

    def check(self, name: str, where: str) -> None:
        """Refuses a name that nothing answers to, before anything is imported."""
        if name not in self._files and name not in self.outsiders:
            raise SettingsError(
                f"{where}: there is no {self.kind} named {name!r}",
                "choose one of these, or announce your own module under the entry-point group "
                f"{self.package!r}",
                choices(name, self.names()),
            )

    def load(self, name: str, where: str = "") -> Any:
        """The variant itself: the class (or function) that its module is named after."""
        self.check(name, where or self.kind)
        if name not in self._files:
            return self.outsiders[name].load()
        module = importlib.import_module(f"{self.package}.{name}")
        camel = "".join(word.capitalize() for word in name.split("_"))
        return getattr(module, camel, None) or getattr(module, name)

    def summary(self, name: str) -> str:
        """The first line of the variant's documentation, read without importing it."""
        self.check(name, self.kind)
        if name not in self._files:
            return f"from {self.outsiders[name].value}"
        tree = ast.parse(self._files[name].read_text(encoding="utf-8"))
        return (ast.get_docstring(tree) or "").partition("\n")[0]

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
