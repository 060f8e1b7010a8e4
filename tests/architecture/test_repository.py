"""What is kept in the repository: no traces of one machine, and locks that fit pyproject.toml."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Folders that exist on one machine only; a path of this kind in a file helps nobody else.
ONE_MACHINE = re.compile(rb"(?<![\w.~$}-])/(?:work|root|opt/wheels|home/\w+|Users/\w+)/")
LARGEST = 600_000


def kept_files() -> list[Path]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        [git, "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    return [file for file in files if file.is_file()]


def test_no_file_names_a_place_on_one_machine() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in kept_files()
        for number, line in enumerate(file.read_bytes().splitlines(), start=1)
        if ONE_MACHINE.search(line)
    ]
    assert not found


def test_no_file_is_large() -> None:
    assert not [file.name for file in kept_files() if file.stat().st_size > LARGEST]


def defined(module: str) -> set[str]:
    """Names at the top of a module of isthmus, and the modules within it."""
    place = ROOT / "src" / Path(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    found = {other.stem for other in place.glob("*")}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {name.asname or name.name for name in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_scripts_import_names_that_are_there() -> None:
    missing = [
        f"{script.name}: {node.module}.{name.name}"
        for folder in ("experiments", "benchmarks")
        for script in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isthmus")
        for name in node.names
        if name.name not in defined(node.module or "")
    ]
    assert not missing


def lock(name: str) -> dict[str, str]:
    """Versions by package; every line is one exact pin, for all machines or some."""
    lines = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8").splitlines()
    pins = [re.fullmatch(r"([\w.-]+)==([\w.]+)(?: ; platform_machine .+)?", line) for line in lines]
    assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if not pin]
    return {canonicalize_name(pin[1]): pin[2] for pin in pins if pin}


def wanted(name: str) -> list[str]:
    extras = PROJECT["project"]["optional-dependencies"]
    run = [*PROJECT["project"]["dependencies"], *extras["minilm"], "hatchling", "editables"]
    if name == "run":
        return run
    return [*run, *PROJECT["dependency-groups"]["dev"], *(p for e in extras.values() for p in e)]


@pytest.mark.parametrize("name", ["run", "test"])
def test_locks_satisfy_the_project(name: str) -> None:
    pins = lock(name)
    for line in wanted(name):
        requirement = Requirement(line)
        version = pins.get(canonicalize_name(requirement.name))
        assert version is not None, f"{line} is not in {name}.lock: make lock"
        assert requirement.specifier.contains(version), f"{line} is {version} in {name}.lock"


def test_both_locks_fit_into_one_environment() -> None:
    run, test = lock("run"), lock("test")
    assert run.items() <= test.items()


@pytest.mark.parametrize("name", ["run", "test"])
def test_locks_choose_no_accelerator(name: str) -> None:
    pins = lock(name)
    assert pins["torch"] == "2.13.0"
    assert not [package for package in pins if re.match(r"nvidia|cuda|triton", package)]
