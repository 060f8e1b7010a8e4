"""What the documentation shows can be typed: verbs, flags, settings, targets, files, links."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import isthmus
from isthmus.benchmarks.report.settings import ReportSettings
from isthmus.cli import app
from isthmus.config import Settings, resolve
from isthmus.finetuning import pipeline
from isthmus.finetuning.settings import FinetuneSettings
from isthmus.inspection.inspect import InspectSettings
from isthmus.inspection.probe import CheckpointSettings
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.retrieval.verbs.export import ExportSettings
from isthmus.retrieval.verbs.index import IndexSettings
from isthmus.retrieval.verbs.search import SearchSettings
from isthmus.retrieval.verbs.sparsify import SparsifySettings
from isthmus.retrieval.verbs.sync import SyncSettings
from isthmus.retrieval.verbs.tune import TuneSettings
from isthmus.retrieval.verbs.update import AddSettings, DeleteSettings, MergeSettings
from isthmus.serving.settings import ServeSettings
from isthmus.workflows.comparison import EvaluateSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
)
COMMAND: Any = typer.main.get_command(app)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^]]*\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\[[^]]*\]\((?!https?:)([^)#]*)#([^)]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
OVERRIDE = re.compile(r"--set '?([\w.]+)=")
SETTINGS: dict[str, type[Settings]] = {
    "pretrain": PretrainSettings,
    "finetune": FinetuneSettings,
    "index": IndexSettings,
    "add": AddSettings,
    "delete": DeleteSettings,
    "merge": MergeSettings,
    "sync": SyncSettings,
    "search": SearchSettings,
    "serve": ServeSettings,
    "tune": TuneSettings,
    "sparsify": SparsifySettings,
    "evaluate": EvaluateSettings,
    "export": ExportSettings,
    "benchmark report": ReportSettings,
    "inspect": InspectSettings,
    "explain": SearchSettings,
    "probe": CheckpointSettings,
}
FLAGS = {
    "rerank": "rerank.model",
    "cluster": "cluster.address",
}  # a flag that stands for one value of several
TARGET = re.compile(r"^([a-z][a-z-]*):(?!=)(.*)$", re.MULTILINE)
EXAMPLES = re.compile(r"isthmus [a-z]+ (?:(?!Example|;).)*", re.DOTALL)


def blocks(page: Path, language: str) -> Iterator[str]:
    for found, content in BLOCK.findall(page.read_text(encoding="utf-8")):
        if found == language:
            yield content


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every shell command of every page, as words, without what merely launches it."""
    for page in PAGES:
        for content in blocks(page, "bash"):
            for line in content.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield page.name, words


def ours() -> list[tuple[str, list[str]]]:
    """The words after `isthmus`, whatever stands before it."""
    found = []
    for page, words in commands():
        names = [Path(word).name for word in words]
        if "isthmus" in names:
            found.append((page, words[names.index("isthmus") + 1 :]))
    inner = [
        more
        for command in COMMAND.commands.values()
        for more in getattr(command, "commands", {}).items()
    ]
    for verb, command in [*COMMAND.commands.items(), *inner]:
        examples = EXAMPLES.findall(command.help or "")
        found += [(f"isthmus {verb} --help", shlex.split(example)[1:]) for example in examples]
    return found


@pytest.fixture
def only_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test where paths into experiments/ lead somewhere, and no others."""
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("only_documentation")
@pytest.mark.parametrize(("page", "words"), ours(), ids=lambda value: " ".join(value))
def test_commands_can_be_typed(page: str, words: list[str]) -> None:
    command, name = COMMAND, ""
    while hasattr(command, "commands"):  # a verb may have verbs of its own
        word, *words = words
        assert word in command.commands, f"{page}: no verb {word}"
        command, name = command.commands[word], f"{name} {word}".strip()
        if not words:
            break
    check_settings(name, command.make_context(name, words).params)


def check_settings(verb: str, values: dict[str, Any]) -> None:
    """Resolves recipe, flags and overrides as the verb does: misspelt settings are refused."""
    if verb in SETTINGS and not values.get("resume"):  # whose settings lie in the folder
        overrides = values.pop("settings") or ()
        recipe = values.pop("recipe", None)
        flags = {
            FLAGS.get(key, key): value
            for key, value in values.items()
            if key in SETTINGS[verb].model_fields and value != ()  # repeatable, not given
        }
        flags.pop("measures", None)  # one string on the command line, a list in the settings
        chosen = resolve(verb, recipe, flags, overrides)
        if "stages" in chosen:
            pipeline.assemble(chosen, where=verb)
            return
        settings = SETTINGS[verb].parse(chosen, where=verb)
        if isinstance(settings, PretrainSettings):
            assemble(settings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_overrides_in_sentences_name_settings(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    unknown = [
        path
        for path in OVERRIDE.findall(text)
        if not any(has_setting(model, path) for model in SETTINGS.values())
    ]
    assert not unknown


def has_setting(model: type[Settings], path: str) -> bool:
    """Whether a dotted path leads somewhere, as far as plain nesting can tell."""
    if model is FinetuneSettings and path.startswith("stages."):
        path = path.split(".", 2)[-1]  # below the stage's name
    first, _, rest = path.partition(".")
    if first not in model.model_fields:
        return False
    inner = model.model_fields[first].annotation
    if rest and isinstance(inner, type) and issubclass(inner, Settings):
        return has_setting(inner, rest)
    return True


def test_there_are_commands_for_every_verb() -> None:
    shown = {words[0] for page, words in ours() if page == "all-commands.md"}
    assert shown == set(COMMAND.commands) - {"quickstart"}  # which make runs


def makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_target_has_a_help_text() -> None:
    targets = TARGET.findall(makefile())
    silent = [name for name, rest in targets if not re.search(r"## \S", rest)]
    assert not silent
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile(), re.MULTILINE)
    assert phony.split() == [name for name, _ in targets]


def test_make_commands_name_targets() -> None:
    targets = {name for name, _ in TARGET.findall(makefile())}
    named = {
        word
        for _, words in commands()
        if words[0] == "make"
        for word in words[1:]
        if "=" not in word
    }
    assert named <= targets
    assert {"quickstart", "test", "setup"} <= named


def python_blocks() -> list[tuple[str, str]]:
    return [(page.name, block) for page in PAGES for block in blocks(page, "python")]


def public_calls(block: str) -> Iterator[tuple[ast.Call, str, Any]]:
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
                    yield node, name, imported[name]
                case ast.Attribute(ast.Name("isthmus"), name):
                    yield node, name, getattr(isthmus, name)


@pytest.mark.parametrize(("page", "block"), python_blocks(), ids=lambda value: value[:30])
def test_python_names_exist_and_take_these_arguments(page: str, block: str) -> None:
    for call, name, called in public_calls(block):
        keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
        inspect.signature(called).bind(*call.args, **keywords)
        check_written_settings(call, name, called)


def check_written_settings(call: ast.Call, name: str, called: Any) -> None:
    """Parses settings that a call writes out, as the function or the class would."""
    literal = ast.Constant | ast.List | ast.Dict
    written = {str(one.arg): one.value for one in call.keywords if isinstance(one.value, literal)}
    values = {name: ast.literal_eval(value) for name, value in written.items() if plain(value)}
    if called in SETTINGS.values():
        called(**values)
    elif name in SETTINGS:
        check_settings(name, {"settings": None, **values})


def plain(value: ast.expr) -> bool:
    """Whether an expression is a literal through and through."""
    return not any(isinstance(node, ast.Name | ast.Call) for node in ast.walk(value))


def test_the_page_of_all_commands_has_every_verb_in_python() -> None:
    (block,) = blocks(ROOT / "docs/how-to/all-commands.md", "python")
    called = {name for _, name, _ in public_calls(block)}
    others = {"listing", "benchmark_report", "evaluate_suite"}
    assert called == others | set(COMMAND.commands) - {"list"}


def test_the_map_names_what_is_there() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ((_, content),) = BLOCK.findall(readme.partition("## Map")[2])
    named = {line.split()[0] for line in content.splitlines()}
    assert not [name for name in named if not (ROOT / name).exists()]
    packages = {
        f"src/isthmus/{file.parent.name}/" for file in (ROOT / "src/isthmus").glob("*/__init__.py")
    }
    assert packages <= named, "a folder is missing from the map"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    dead = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert not dead


def anchors(page: Path) -> set[str]:
    """What a link can name of a page: its headings as GitHub spells them."""
    titles = HEADING.findall(BLOCK.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_name_headings_that_are_there(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    dead = [
        f"{path}#{anchor}"
        for path, anchor in ANCHOR.findall(text)
        if anchor not in anchors(page.parent / path if path else page)
    ]
    assert not dead


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(LINK.findall((folder / "README.md").read_text(encoding="utf-8")))
    assert listed == {file.name for file in folder.glob("*.md")} - {"README.md"}


def test_messages_name_no_page_that_a_wheel_does_not_hold() -> None:
    found = []
    for file in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{file.relative_to(ROOT)}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if "docs/" in node.value and id(node) not in documented
        ]
    assert not found
