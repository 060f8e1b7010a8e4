"""Help that answers at once, and shows how each verb is used."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.main import get_group
from typer.testing import CliRunner

import isthmus
from isthmus.cli.old import app

VERBS = list(get_group(app).commands)
ALL = [*VERBS, "benchmark report"]
HEAVY = (
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "numpy",
    "scipy",
    "pyarrow",
)


@pytest.mark.parametrize("verb", ALL)
def test_every_verb_shows_an_example(verb: str) -> None:
    shown = CliRunner().invoke(app, [*verb.split(), "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert f"isthmus {verb}" in shown.stdout.partition("Example")[2]


def test_help_imports_nothing_heavy() -> None:
    """One process shows the help of every verb: a heavy import stays until its end."""
    every: list[list[str]] = [[], *(verb.split() for verb in ALL)]
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


def test_the_version_is_printed() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.stdout) == (0, f"isthmus {isthmus.__version__}\n")
