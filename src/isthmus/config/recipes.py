"""Recipes: YAML files that hold anything a flag can say, shipped or the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from isthmus.config import plain_yaml
from isthmus.config.output import read_snapshot
from isthmus.errors import InputError, SettingsError, choices, readable, shortened, shown

_SHIPPED = Path(str(files("isthmus") / "recipes"))
_PROTOCOLS = Path(str(files("isthmus") / "protocols"))
PROTOCOL_VERB = "benchmark"
"""The verb whose recipes are protocols, in a folder of their own."""
_LARGEST_RECIPE = 2**20  # bytes
_DEEPEST_PATH = 50
Overrides = Mapping[str, Any] | Sequence[str] | None
"""What is set over a recipe: dotted paths and their values, or `PATH=VALUE` strings."""
_HEADER = ("verb", "base", "summary", "paper", "settings", "sources")


class Recipe:
    """One recipe: which verb it is for, what it does in one line, and its settings.

    With `base: NAME` it builds on another recipe of the same verb, and says only what differs; with
    a list of names on several, of which later ones count more.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        values = _read_yaml(file)
        for key in values:
            if key not in _HEADER:
                raise SettingsError(
                    f"{file}: unknown key {key!r}",
                    "correct the spelling; settings of the command belong under 'settings:'",
                    choices(str(key), _HEADER),
                )
        for key in ("verb", "settings"):
            if key not in values:
                raise SettingsError(
                    f"the recipe {file} has no {key!r}",
                    f"add '{key}:'; `isthmus recipes` names examples",
                )
        if not isinstance(values["settings"] or {}, dict):
            raise SettingsError(
                f"{file}: settings = {shown(values['settings'])} is not a mapping",
                "write 'settings:' and below it, indented, key: value; `isthmus recipes` "
                "names examples",
            )
        self.verb = str(values["verb"])
        self.summary = str(values.get("summary", ""))
        self.paper = str(values.get("paper", ""))
        base = values.get("base") or []
        self.bases = [str(name) for name in (base if isinstance(base, list) else [base])]
        self.own: dict[str, Any] = dict(values["settings"] or {})

    @property
    def name(self) -> str:
        """The public name: the file's, without its ending."""
        return self.file.stem

    @property
    def source(self) -> str:
        """What `paper` begins with, before its first colon: "CDMAE, arXiv 2023"."""
        return self.paper.partition(":")[0]

    @cached_property
    def chain(self) -> list[Recipe]:
        """The recipe itself, the one it builds on, the one that builds on, and so forth."""
        return self._chain([])

    def _chain(self, above: list[Recipe]) -> list[Recipe]:
        """The recipe, and what it builds on; `above` are those that build on it."""
        path = [*above, self]
        if self.file.resolve() in [recipe.file.resolve() for recipe in above]:
            raise SettingsError(
                f"the recipe {above[-1].file} builds on itself: "
                f"{' → '.join(recipe.name for recipe in path)}",
                "remove or change 'base:' in one of these files",
            )
        below = [_base(name, self)._chain(path) for name in reversed(self.bases)]
        return [self, *(recipe for chain in below for recipe in chain)]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the verb takes: the base's settings, with this recipe's own over them."""
        values: dict[str, Any] = {}
        for recipe in reversed(self.chain):
            values = merged(values, recipe.own)
        return values


def _base(name: str, recipe: Recipe) -> Recipe:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):  # beside the recipe, wherever the command is run
        name = str(recipe.file.parent / path)
    return find_recipe(name, recipe.verb, where=f"{recipe.file}: base")


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with others over them: mappings are merged, everything else is replaced.

    A part of another name replaces the part below with all its settings, which are not its own.
    """
    values: dict[str, Any] = _copy(below)
    for key, value in above.items():
        earlier = values.get(key)
        if isinstance(earlier, str) and isinstance(value, Mapping):
            earlier = {"name": earlier}  # a part chosen by name alone gains settings of its own
        if (
            isinstance(earlier, Mapping)
            and isinstance(value, Mapping)
            and value.get("name", earlier.get("name")) == earlier.get("name")
        ):
            values[key] = merged(earlier, value)
        else:
            values[key] = _copy(value)
    return values


def shipped_recipes(verb: str | None = None) -> list[Recipe]:
    """The recipes that come with the package, in alphabetical order; protocols by their verb."""
    return [recipe for recipe in _shipped(_home(verb)) if verb in (None, recipe.verb)]


def _home(verb: str | None) -> Path:
    return _PROTOCOLS if verb == PROTOCOL_VERB else _SHIPPED


_shipped_recipe = cache(Recipe)  # read once: nothing writes to them


@cache
def _shipped(home: Path) -> list[Recipe]:
    # A name with _ in front is what others build on, and nothing by itself.
    recipes = [_shipped_recipe(file) for file in home.glob("[!_]*.yaml")]
    # Not by file: bow.yaml follows bow-pmi.yaml.
    return sorted(recipes, key=lambda recipe: recipe.name)


def find_recipe(name: str, verb: str, where: str | None = None) -> Recipe:
    """The recipe of a shipped name or a path, refused when it is for another verb."""
    with readable(Path(name)):
        recipe = _find(name, verb, where)
    if recipe.verb != verb:
        raise SettingsError(
            f"the recipe {recipe.name!r} is for `isthmus {recipe.verb}`, not `isthmus {verb}`",
            f"run `isthmus {recipe.verb} --recipe {name}`, or choose another recipe",
            ", ".join(r.name for r in shipped_recipes(verb)),
        )
    return recipe


def _find(name: str, verb: str, where: str | None) -> Recipe:
    path = Path(name)
    kind = "protocol" if verb == PROTOCOL_VERB else "recipe"
    where = where or ("PROTOCOL" if verb == PROTOCOL_VERB else "--recipe")
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise InputError(
                f"{where}: there is no {kind} file {name!r}",
                f"check the path, or choose a shipped {kind} (`isthmus recipes`)",
                ", ".join(r.name for r in shipped_recipes(verb)),
            )
        return Recipe(path)
    path = _home(verb) / f"{name}.yaml"
    of_run = "" if verb == PROTOCOL_VERB else ", also of an earlier output"
    if not path.is_file():
        raise SettingsError(
            f"{where}: there is no {kind} named {name!r}",
            f"choose one of these (`isthmus recipes` explains them), or give a path{of_run}",
            choices(name, (r.name for r in shipped_recipes(verb))),
        )
    return _shipped_recipe(path)


def earlier_run(recipe: str | None, verb: str) -> dict[str, Any] | None:
    """The snapshot of the output folder that stands for a recipe: "as that run"; else None."""
    if recipe is None or not Path(recipe).is_dir():
        return None
    if (_home(verb) / f"{recipe}.yaml").is_file() and Path(recipe).name == recipe:
        return None
    snapshot = read_snapshot(Path(recipe))
    if snapshot["verb"] != verb:
        raise SettingsError(
            f"--recipe {recipe} was made by `isthmus {snapshot['verb']}`, not by `isthmus {verb}`",
            f"run `isthmus {snapshot['verb']} --recipe {recipe}`, or choose another recipe",
        )
    return snapshot


def resolve(
    verb: str,
    recipe: str | None = None,
    flags: Mapping[str, Any] | None = None,
    overrides: Overrides = None,
) -> dict[str, Any]:
    """Recipe, then flags, then overrides, merged into one plain mapping.

    Flags that are None were not given. Overrides are `a.b=c` strings whose right side is YAML,
    or a mapping of dotted paths to values, of which mappings are merged with what is there.
    """
    values: dict[str, Any] = {}
    if (earlier := earlier_run(recipe, verb)) is not None:
        values = _copy(earlier["identity"]["settings"])
    elif recipe is not None:
        values = _copy(find_recipe(recipe, verb).settings)
    for name, value in (flags or {}).items():
        if value is not None:
            _put(values, name, value, where=f"--{name.replace('_', '-')}")
    nested = isinstance(overrides, Mapping)
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(_split, overrides or ())
    for path, value in pairs:
        _put(values, path, value, where=f"--set {path}", merge=nested)
    return values


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def _split(override: str) -> tuple[str, Any]:
    path, equals, text = override.partition("=")
    if not equals or not path.strip():
        raise SettingsError(
            f"--set {override!r} is not PATH=VALUE",
            "write a dotted path, an equals sign and a YAML value: --set "
            "training.learning_rate=1e-4",
        )
    return path.strip(), _scalar(text, where=f"--set {shortened(override, 200)}")


def _put(values: dict[str, Any], path: str, value: Any, where: str, merge: bool = False) -> None:
    *parents, last = path.split(".")
    if len(parents) > _DEEPEST_PATH:
        raise SettingsError(
            f"--set: the path {shown(path)} is {len(parents):,} deep",
            "correct the path",
        )
    current = values
    for place, parent in enumerate(parents, start=1):
        inner = current.get(parent)
        if isinstance(inner, str):  # a part chosen by name alone gains settings of its own
            inner = current[parent] = {"name": inner}
        elif inner is None:
            inner = current[parent] = {}
        elif isinstance(inner, list):  # NAME.0.KEY: a member of a list, by its place
            members = {str(number): member for number, member in enumerate(inner)}
            rest = ".".join([*parents[place:], last])
            if rest.partition(".")[0] not in members:
                raise SettingsError(
                    f"{where}: {path!r} goes through {parent!r}, a list of {len(inner)}",
                    f"name an element of the list, or set {parent!r} itself",
                    ", ".join(f"{parent}.{number}" for number in members),
                )
            _put(members, rest, value, where, merge)
            current[parent] = list(members.values())
            return
        elif not isinstance(inner, dict):
            raise SettingsError(
                f"{where}: {path!r} goes through {parent!r}, which holds {shown(inner)}",
                f"set {parent!r} itself, or correct the path",
            )
        current = inner
    current[last] = merged(current, {last: value})[last] if merge else value


def _scalar(text: str, where: str) -> Any:
    try:
        return plain_yaml.load(text)
    except yaml.YAMLError as error:
        raise SettingsError(
            f"{where}: {shown(text)} is not a YAML value: {error}",
            "quote the value: --set 'path=\"the value\"'",
        ) from None


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _LARGEST_RECIPE:
            raise yaml.YAMLError(f"more than {_LARGEST_RECIPE:,} bytes")
        values = plain_yaml.load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(
            f"the recipe {file} is not valid YAML: {error}",
            "correct the file; `isthmus recipes` names examples",
        ) from None
    if not isinstance(values, dict):
        raise InputError(
            f"the recipe {file} is not a mapping",
            "correct the file; `isthmus recipes` names examples",
            ", ".join(_HEADER),
        )
    return values
