"""Where each number of a recipe or protocol comes from, as docs/how-faithful.md lists it.

python docs/faithful.py    # writes the tables of the page again, from `sources:` of the files
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from isthmus.config import plain_yaml
from isthmus.config.recipes import Recipe, shipped_recipes

PAGE = Path(__file__).with_name("how-faithful.md")
PROTOCOLS = Path(__file__).parents[1] / "src" / "isthmus" / "protocols"
BLOCK = re.compile(r"(<!-- sources of ([\w/-]+) -->\n\n).*?(<!-- end -->)", re.DOTALL)
COLUMNS = ("setting", "ours", "source", "the source's, where it differs", "what else to know")
# What of a protocol changes what is trained, by the path of the setting.
TRAINS = re.compile(
    r"(base\.settings|pretraining|finetuning|seeds|collections\.[^.]+\.pretraining"
    r"|(recipes|retrievers|methods|tasks)\.[^.]+\.(settings|finetuning|teacher|queries))(\.|$)"
)


@cache
def recipes() -> dict[str, Recipe]:
    """All recipes, and the protocols that change what is trained."""
    named = {recipe.name: recipe for recipe in shipped_recipes()}
    protocols = {f"protocols/{file.stem}": Recipe(file) for file in PROTOCOLS.glob("*.yaml")}
    return named | {name: one for name, one in protocols.items() if settings(one)}


def settings(recipe: Recipe) -> dict[str, Any]:
    """The settings, by path, that need a source: a file's own, and of a protocol what trains."""
    own = dict(leaves(recipe.own))
    if recipe.verb != "benchmark":
        return own
    return {path: value for path, value in own.items() if TRAINS.match(path)}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values of what is no mapping, or an empty one."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


def sources(recipe: Recipe) -> dict[str, dict[str, str]]:
    """The source, their value and a note, by the paths that they are of, separated by commas."""
    told = plain_yaml.load(recipe.file.read_text(encoding="utf-8")).get("sources", {})
    return {key: one if isinstance(one, dict) else {"source": one} for key, one in told.items()}


def value_of(values: Mapping[str, Any], path: str) -> Any:
    """What is at a path; keys may have dots themselves."""
    if path in values:
        return values[path]
    key = next(key for key in values if path.startswith(f"{key}."))
    return value_of(values[key], path.removeprefix(f"{key}."))


def written(page: str) -> str:
    """The page with its tables written again."""
    return BLOCK.sub(lambda found: f"{found[1]}{table(recipes()[found[2]])}{found[3]}", page)


def table(recipe: Recipe) -> str:
    """What a file builds on, and a row for each of its sources."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for key, told in sources(recipe).items():
        paths = key.split(", ")
        ours = (code(value_of(recipe.own, path)) for path in paths)
        theirs = told.get("theirs", "")
        shown = theirs if theirs in ("", "not stated") else f"`{theirs}`"
        named = ", ".join(f"`{path}`" for path in paths)
        rows.append((named, ", ".join(ours), told["source"], shown, told.get("note", "")))
    lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    based = recipe.verb != "benchmark" and recipe.bases
    builds = f"As in [{Path(based[0]).stem}](#{Path(based[0]).stem}), and:\n\n" if based else ""
    return builds + "\n".join(lines) + "\n\n"


def code(value: Any) -> str:
    """A value as YAML has it, on one line."""
    plain = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return f"`{plain.removesuffix('...' + chr(10)).strip()}`"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
