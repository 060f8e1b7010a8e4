"""Python sources read with `ast`: which public names they offer, and what documents them.

Nothing is imported or run. A name counts as public when no part of it begins with an underscore;
what a private module defines is public under the name a public package re-exports it by
(numpy/linalg/_linalg.py defines numpy.linalg.norm).
"""

from __future__ import annotations

import ast
import sys
import sysconfig
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path, PurePath

from isthmus.collections.problems import Problems

_NOT_FOR_USERS = frozenset(
    ("benchmarks", "conftest", "docs", "ensurepip", "examples", "idlelib", "lib2to3",
     "pydoc_data", "setup", "test", "tests", "turtledemo")
)  # fmt: skip


@dataclass(slots=True)
class Definition:
    """A class or function: its documentation and, for a class, its members."""

    documentation: str | None
    members: dict[str, Definition] = field(default_factory=dict)


@dataclass(slots=True)
class Module:
    """What one source file defines, and what it takes over from other modules."""

    documentation: str | None
    is_package: bool
    definitions: dict[str, Definition] = field(default_factory=dict)
    taken: dict[str, tuple[str, str]] = field(default_factory=dict)
    taken_whole: list[str] = field(default_factory=list)
    offered: frozenset[str] | None = None  # a literal __all__; None when there is none


def installed_sources(packages: Container[str] | None = None) -> dict[str, dict[str, Path]]:
    """Source files by top-level package and module name; None: of everything there is.

    Modules that serve tests, examples and the like are left out; private ones are kept, because
    public packages re-export what they define.
    """
    found: dict[str, dict[str, Path]] = defaultdict(dict)
    library = Path(sysconfig.get_path("stdlib"))
    for name in sys.stdlib_module_names:
        if packages is not None and name not in packages:
            continue
        for file in (library / f"{name}.py", *(library / name).rglob("*.py")):
            _add(found, file.relative_to(library), file)
    for distribution in distributions():
        for listed in distribution.files or ():
            top = listed.parts[0].removesuffix(".py")
            if listed.suffix == ".py" and (packages is None or top in packages):
                _add(found, listed, Path(str(distribution.locate_file(listed))))
    return {package: dict(sorted(found[package].items())) for package in sorted(found)}


class Package:
    """The modules of one top-level package, and the names under which users find their content."""

    def __init__(self, files: Mapping[str, Path], problems: Problems) -> None:
        self.modules = dict(_read_modules(files, problems))
        self._bindings: dict[str, dict[str, tuple[str, str]]] = {}

    def documentation(self) -> Iterator[tuple[str, str]]:
        """Qualified public names with their documentation; one object may have several names."""
        for name, module in self.modules.items():
            if not _is_public(name):
                continue
            for inner, definition in module.definitions.items():
                yield from _documented(f"{name}.{inner}", definition)
            for inner in self._taken_over(name):
                found = self._find(name, inner, set())
                if found is not None:
                    yield from _documented(f"{name}.{inner}", found)
            # After its content: where a function and its module share a name, users mean the
            # function.
            if module.documentation:
                yield name, module.documentation

    def _taken_over(self, name: str) -> list[str]:
        """The names that a module re-exports: all imports of a package, or what __all__ lists."""
        module = self.modules[name]
        if module.offered is None and not module.is_package:
            return []  # imports of a plain module are its tools, not its offer
        names = self._bound(name).keys() - module.definitions.keys()
        return sorted(_offered(module, names))

    def _bound(self, name: str) -> dict[str, tuple[str, str]]:
        """Where each name of a module comes from: the module that defines or imports it by name."""
        if name not in self._bindings:
            self._bindings[name] = self._collect(name, set())
        return self._bindings[name]

    def _collect(self, name: str, seen: set[str]) -> dict[str, tuple[str, str]]:
        if name in seen or name not in self.modules:
            return {}
        seen.add(name)
        module = self.modules[name]
        bound: dict[str, tuple[str, str]] = {}
        for source in module.taken_whole:
            inner = self._collect(source, seen)
            if inner:
                bound |= {key: inner[key] for key in _offered(self.modules[source], inner.keys())}
        return bound | module.taken | {inner: (name, inner) for inner in module.definitions}

    def _find(self, name: str, inner: str, seen: set[tuple[str, str]]) -> Definition | None:
        """The definition that a name stands for, followed through imports within the package."""
        if (name, inner) in seen or name not in self.modules:
            return None
        seen.add((name, inner))
        if inner in self.modules[name].definitions:
            return self.modules[name].definitions[inner]
        origin = self._bound(name).get(inner)
        return None if origin is None else self._find(*origin, seen)


def _read_modules(files: Mapping[str, Path], problems: Problems) -> Iterator[tuple[str, Module]]:
    for name, file in files.items():
        try:
            with warnings.catch_warnings():  # invalid escapes in other people's sources
                warnings.simplefilter("ignore")
                with tokenize.open(file) as stream:
                    source = stream.read()
                tree = ast.parse(source)
            module = Module(ast.get_docstring(tree), is_package=file.name == "__init__.py")
            _read_body(tree.body, name, module)
            module.offered = _literal_all(tree, source)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OSError) as error:
            detail = f"{type(error).__name__}: {error}"  # MemoryError: the parser's own limit
            problems.report("broken source", str(file), detail, "leave the package out")
            continue
        yield name, module


def _offered(module: Module, names: Set[str]) -> set[str]:
    if module.offered is not None:
        return {name for name in names if name in module.offered and not name.startswith("_")}
    return {name for name in names if not name.startswith("_")}


def _add(found: dict[str, dict[str, Path]], relative: PurePath, file: Path) -> None:
    parts = relative.with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    if not parts or not all(part.isidentifier() for part in parts):
        return  # scripts, files outside the package folder, data
    if any(p in _NOT_FOR_USERS or p.startswith("test_") or p.endswith("_test") for p in parts):
        return
    if parts[0].startswith("_") or not file.is_file():
        return
    found[parts[0]].setdefault(".".join(parts), file)


def _is_public(name: str) -> bool:
    return not any(part.startswith("_") for part in name.split("."))


def _read_body(body: Iterable[ast.stmt], name: str, module: Module) -> None:
    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                module.definitions.setdefault(node.name, _definition(node))
            case ast.ImportFrom():
                source = _absolute(node, name, module.is_package)
                for alias in node.names:
                    if alias.name == "*":
                        module.taken_whole.append(source)
                    else:
                        module.taken[alias.asname or alias.name] = (source, alias.name)
            case ast.If() | ast.Try() | ast.With():
                for part in ("body", "orelse", "finalbody"):
                    _read_body(getattr(node, part, ()), name, module)
                for handler in getattr(node, "handlers", ()):
                    _read_body(handler.body, name, module)


def _definition(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Definition:
    definition = Definition(ast.get_docstring(node))
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                definition.members.setdefault(inner.name, _definition(inner))
    return definition


def _absolute(node: ast.ImportFrom, name: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parents = name.split(".")
    drop = node.level - is_package
    base = parents[: len(parents) - drop] if drop else parents
    return ".".join([*base, *([node.module] if node.module else [])])


def _literal_all(tree: ast.Module, source: str) -> frozenset[str] | None:
    """The names in `__all__` when it is written out once; None when it is computed or absent."""
    if source.count("__all__") != 1:
        return None
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            try:
                return frozenset(str(name) for name in ast.literal_eval(node.value))
            except (ValueError, TypeError):
                return None
    return None


def _documented(name: str, definition: Definition) -> Iterator[tuple[str, str]]:
    if name.rpartition(".")[2].startswith("_"):
        return
    if definition.documentation:
        yield name, definition.documentation
    for inner, member in definition.members.items():
        yield from _documented(f"{name}.{inner}", member)
