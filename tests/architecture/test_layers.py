"""The layers of pyproject.toml hold, nothing stands outside them, and breaking them is noticed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the contracts of a source tree, whichever one is installed."""
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_point_downwards() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_wrong_imports_are_noticed(tmp_path: Path) -> None:
    wrong = {
        "text/batches": "isthmus.retrieval.fusion.reciprocal_rank",
        "finetuning/pairs": "isthmus.pretraining.parts",
        "indexes/selection": "torch",
        "evaluation/tables": "transformers",
    }
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, imported in wrong.items():
        broken = tmp_path / "src" / "isthmus" / f"{file}.py"
        broken.write_text(f"{broken.read_text()}\nimport {imported}\n")
    result = lint(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    for file, imported in wrong.items():
        assert f"isthmus.{file.replace('/', '.')} -> {imported} (l." in result.stdout


def test_every_module_has_a_layer() -> None:
    (layers,) = [contract["layers"] for contract in CONTRACTS if contract["type"] == "layers"]
    named = {name for layer in layers for name in re.split(r"\s*[|:]\s*", layer)}
    folder = ROOT / "src" / "isthmus"
    packages = {file.parent.name for file in folder.glob("*/__init__.py")}
    modules = {file.stem for file in folder.glob("[!_]*.py")}  # __main__ stands above them all
    assert {f"isthmus.{name}" for name in packages | modules} == named
