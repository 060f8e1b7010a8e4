"""What the documentation shows can be typed: commands, options, settings, files, links."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest

import isthmus
from isthmus import api
from isthmus.cli import app
from isthmus.cli.build import call, described
from isthmus.cli.show_settings import shown_settings
from isthmus.config import resolve
from isthmus.config.output import write_snapshot

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^]]*\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
RUNS = {"runs/bow": ("pretrain", "bow"), "runs/dense": ("finetune", "dense")}  # as recipes


def blocks(page: Path, language: str) -> Iterator[str]:
    for found, content in BLOCK.findall(page.read_text(encoding="utf-8")):
        if found == language:
            yield content


def shown() -> set[tuple[str, ...]]:
    """The words after `isthmus` of every command of every page and help text."""
    found = set()
    for page in PAGES:
        for content in blocks(page, "bash"):
            for line in content.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                names = [Path(word).name for word in words]
                if "isthmus" in names:
                    found.add(tuple(words[names.index("isthmus") + 1 :]))
    for function in [*app.functions.values(), *app.commands["research"].functions.values()]:
        for line in described(function).examples:
            words = shlex.split(line.partition(" > ")[0])
            found.add(tuple(words[1:]))
    return found


def resolves(words: tuple[str, ...]) -> None:
    """Parses what was typed, and resolves its settings, as `--show-settings` does."""
    name, *rest = words
    command = app.get_command(None, name)
    if isinstance(command, click.Group):
        name, *rest = rest
        command = command.get_command(None, name)
    typed = command.make_context(name, rest).params
    if "settings" in typed:
        function = app.functions.get(name) or getattr(api, name)
        shown_settings(name, lambda: call(function, typed), "")


@pytest.mark.parametrize("words", sorted(shown()), ids=" ".join)
def test_commands_can_be_typed(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parses the options, and resolves recipe and settings, as the command does."""
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    if any(option == "-r" and named in RUNS for option, named in pairwise(words)):
        for run, (made_by, recipe) in RUNS.items():
            Path(run).mkdir(parents=True)
            write_snapshot(Path(run), made_by, {"settings": resolve(made_by, recipe)}, {})
    resolves(words)


def public_calls(block: str) -> Iterator[tuple[ast.Call, Any]]:
    """Calls of what a block imports from isthmus: `NAME(…)` and `isthmus.NAME(…)`."""
    tree = ast.parse(block)
    imported: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isthmus"):
            module = importlib.import_module(str(node.module))
            imported |= {alias.name: getattr(module, alias.name) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(name) if name in imported:
                    yield node, imported[name]
                case ast.Attribute(ast.Name("isthmus"), name):
                    yield node, getattr(isthmus, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_names_exist_and_take_these_arguments(page: Path) -> None:
    for block in blocks(page, "python"):
        for written, called in public_calls(block):
            keywords = {keyword.arg: None for keyword in written.keywords if keyword.arg}
            inspect.signature(called).bind(*written.args, **keywords)


def anchors(page: Path) -> set[str]:
    """What a link can name of a page: its headings as GitHub spells them."""
    titles = HEADING.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link, anchor in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        target = page.parent / link if link else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(f"{link}#{anchor}")
    assert not dead
