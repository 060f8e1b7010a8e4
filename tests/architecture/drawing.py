"""The drawing of the rooms in docs/architecture.md, made from the imports of the source.

python -m tests.architecture.drawing    # draws it anew
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
DRAWN = re.compile(r"(?<=<!-- drawn from the imports -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)


def layers() -> list[list[str]]:
    """The rooms of every layer, the highest first, as pyproject.toml orders them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (found,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return [re.findall(r"isthmus\.(\w+)", layer) for layer in found]


def imports() -> dict[str, set[str]]:
    """By module, the modules that it imports, at its top or inside a function; no front door."""
    graph = grimp.build_graph("isthmus", cache_dir=None)
    doors = {"isthmus", "isthmus.__main__"}
    return {
        module: graph.find_modules_directly_imported_by(module) - doors
        for module in graph.modules - doors
    }


def drawing() -> str:
    """One line per room: what its modules import from other rooms, the highest layer first."""
    used: dict[str, set[str]] = {}
    for module, others in imports().items():
        room = module.split(".")[1]
        used.setdefault(room, set()).update(other.split(".")[1] for other in others)
    order = [room for layer in layers() for room in layer]
    wide = max(map(len, order))
    lines = []
    for layer in layers():
        for room in layer:
            below = [other for other in order if other in used[room] - {room}]
            lines.append(f"{room:{wide}}  {' '.join(below) or '-'}")
        lines.append("")
    return "\n".join(["```text", *lines[:-1], "```"])


if __name__ == "__main__":
    PAGE.write_text(DRAWN.sub(drawing(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
