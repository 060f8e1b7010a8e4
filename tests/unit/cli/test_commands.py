"""The rules that hold for every command, whatever it does."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tests.factories import write_corpus

import isthmus
from isthmus.cli import app
from isthmus.cli.build import described

FUNCTIONS = {**app.functions, **app.commands["research"].functions}
COMMANDS: dict[str, click.Command] = {
    name: group.get_command(None, name)
    for group in (app, app.commands["research"])
    for name in group.functions
}
SHORT = {
    "-o": "output", "-m": ("model", "models"), "-r": "recipe", "-s": "settings", "-k": "k",
    "-n": "dry_run", "-q": "quiet", "-v": "verbose", "-h": "help",
}  # fmt: skip
GONE = ("--corpus", "--with", "--guard", "--init", "--resume", "--title", "--cluster", "--depth")
HEAVY = ("torch", "transformers", "tokenizers", "accelerate", "numpy", "scipy", "pyarrow")


def words(name: str) -> list[str]:
    return [name] if name in app.functions else ["research", name]


def options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option)]


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_acts_on_comes_first(name: str) -> None:
    given = [one for one in COMMANDS[name].params if isinstance(one, click.Argument)]
    assert len(given) <= 3
    parameters = list(inspect.signature(FUNCTIONS[name]).parameters)
    if given:
        assert given[0].name == parameters[0].replace("self", "index")
    assert all(one.help for one in given)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_word_means_the_same_everywhere(name: str) -> None:
    for option in options(COMMANDS[name]):
        assert not set(option.opts) & set(GONE)
        for spelt in option.opts:
            if not spelt.startswith("--"):
                assert option.name in SHORT[spelt]
        if option.name in ("queries", "documents", "collection", "recipe", "model"):
            assert not option.is_flag, "a word for an input is no switch"
    taken = [spelt for option in options(COMMANDS[name]) for spelt in option.opts]
    assert len(set(taken)) == len(taken)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_json_and_is_quiet_and_shows_its_settings(name: str) -> None:
    found = {option.name for option in options(COMMANDS[name])}
    assert {"as_json", "quiet", "verbose"} <= found
    assert ("show_settings" in found) == (
        "settings" in inspect.signature(FUNCTIONS[name]).parameters
    )


@pytest.mark.parametrize("name", ["adapt", "index", "pretrain", "finetune"])
def test_what_a_long_job_wrote_can_be_replaced(name: str) -> None:
    if name in COMMANDS:
        assert "overwrite" in {option.name for option in options(COMMANDS[name])}


@pytest.mark.parametrize("name", COMMANDS)
def test_everything_is_documented_once(name: str) -> None:
    function = FUNCTIONS[name]
    text = described(function)
    assert list(text.parameters) == list(inspect.signature(function).parameters)
    assert text.summary.endswith(".")
    typed = " ".join(["isthmus", *words(name)])
    assert any(line.startswith(typed) for line in text.examples)
    shown = CliRunner().invoke(app, [*words(name), "--help"]).output
    assert text.examples[0] in shown
    assert max(map(len, shown.splitlines())) <= 120


def test_help_imports_nothing_heavy() -> None:
    """One process shows the help of every command: a heavy import stays until its end."""
    every: list[list[str]] = [[], *map(words, COMMANDS)]
    program = (
        "import runpy, sys\n"
        f"for arguments in {every!r}:\n"
        "    sys.argv = ['isthmus', *arguments, '--help']\n"
        "    try:\n        runpy.run_module('isthmus', run_name='__main__')\n"
        "    except SystemExit as end:\n        assert not end.code, end.code\n"
        f"    heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "    assert not heavy, (arguments, heavy)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("Usage") == len(every)


def test_settings_are_shown_without_the_libraries_of_models() -> None:
    """Of the commands that train, which takes them seconds."""
    every = [["pretrain"], ["finetune"], ["finetune", "-r", "three-stage"]]
    program = (
        "import runpy, sys\n"
        f"for arguments in {every!r}:\n"
        "    sys.argv = ['isthmus', *arguments, '--show-settings', '--json']\n"
        "    try:\n        runpy.run_module('isthmus', run_name='__main__')\n"
        "    except SystemExit as end:\n        assert not end.code, (arguments, end.code)\n"
        f"    heavy = [name for name in {HEAVY[:4]!r} if name in sys.modules]\n"
        "    assert not heavy, (arguments, heavy)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) == len(every)


def test_the_version_is_printed() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.stdout) == (0, f"isthmus {isthmus.__version__}\n")


def typed(*arguments: Any) -> tuple[int, str, str]:
    ended = subprocess.run(
        [sys.executable, "-m", "isthmus", *map(str, arguments)], capture_output=True, text=True
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["search", "idx", "q", "--depth", "3"], "here it is -k/--top-k"),
        (["index", "--corpus", "docs.jsonl"], "here it is the argument DOCUMENTS"),
        (["search", "idx", "q", "--topk", "3"], "here it is -k/--top-k"),
        (["index", "docs.jsonl", "--ouput", "idx"], "did you mean --output"),
        (["serch", "idx"], "did you mean search"),
        (["train", "docs"], "adapt, pretrain or finetune"),
        (["evaluate", "--corpus", "docs"], "here it is the argument COLLECTION"),
        (["search", "idx", "q", "--model", "m"], "here it is --use"),
        (["index", "docs.jsonl"], "--output"),
    ],
)
def test_near_misses_are_named(arguments: list[str], said: str) -> None:
    code, out, err = typed(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
    assert "--help" in err
    code, out, err = typed(*arguments, "--json")
    assert (code, err) == (2, "")
    assert said in json.loads(out)["error"]["what"]


def test_settings_are_shown_with_their_source(tmp_path: Path) -> None:
    code, out, _ = typed("search", "-k", "7", "-s", "candidates=50", "--show-settings", "--json")
    assert code == 0
    assert out.endswith("}\n")
    found = {one["path"]: (one["value"], one["source"]) for one in json.loads(out)["settings"]}
    assert found["k"] == ("7", "command line")
    assert found["candidates"] == ("50", "--set")
    assert found["fusion"] == ("null", "default")
    code, out, _ = typed("search", "--show-settings", "rerank", "--json")
    assert {one["path"].split(".")[0] for one in json.loads(out)["settings"]} == {"rerank"}
    code, _, err = typed("search", "--show-settings", "rerankk")
    assert code == 2
    assert "rerank" in err.partition("expected:")[2]


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"benchmark"}))  # of a protocol
def test_settings_are_shown_without_anything_else(name: str) -> None:
    if "settings" in inspect.signature(FUNCTIONS[name]).parameters:
        shown = CliRunner().invoke(app, [*words(name), "--show-settings", "--json"])
        assert shown.exit_code == 0, shown.output
        assert json.loads(shown.stdout)["settings"]


def test_a_writer_prints_one_object_and_quiet_prints_the_result_alone(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "docs.jsonl", {"1": "a fox", "2": "a dog"})
    code, out, _ = typed("index", corpus, "-o", tmp_path / "idx", "--json")
    assert (code, out[-1]) == (0, "\n")
    found = json.loads(out)
    assert (found["command"], found["documents"]) == ("index", 2)
    assert found["next"].startswith(f"isthmus search {tmp_path / 'idx'}")
    more = write_corpus(tmp_path / "more.jsonl", {"3": "a cat"})
    code, out, err = typed("add", tmp_path / "idx", more, "--quiet")
    assert (code, err) == (0, "")
    assert out == "added 1 document, replaced 0; the index has 3\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell: str) -> None:
    assert "_ISTHMUS_COMPLETE" in CliRunner().invoke(app, ["--completion", shell]).output


def test_a_shell_completes_commands_and_options() -> None:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(app, {}, "isthmus", "_ISTHMUS_COMPLETE")
    assert "search" in [one.value for one in complete.get_completions([], "se")]
    assert [one.value for one in complete.get_completions(["search", "idx"], "--que")] == [
        "--queries"
    ]
