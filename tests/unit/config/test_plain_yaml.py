"""YAML from outside: values that a setting can be, or the project's own errors."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli import main
from isthmus.config import Settings, resolve
from isthmus.config.output import read_snapshot, write_json
from isthmus.config.recipes import find_recipe
from isthmus.errors import InputError, IsthmusError, SettingsError

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGED_LAUGHS = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10)
)
HOSTILE = {
    "digits": ("seed: " + "9" * 5000, "cannot be read as int"),
    "64 bits": ("seed: 9223372036854775808", "a number of more than 64 bits"),
    "nested": ("a: " + "[" * 100_000 + "]" * 100_000, "nested more than 50 deep"),
    "nested mappings": ("a: " + "{a: " * 200 + "}" * 200, "nested more than 50 deep"),
    "itself": ("a: &a [*a]", "a value that holds itself"),
    "itself as a mapping": ("&a {b: *a}", "a value that holds itself"),
    "laughs": (LAUGHS, "more than 100,000 values"),
    "merged laughs": (MERGED_LAUGHS, "more than 100,000 values"),
    "no anchor": ("a: *b", "undefined alias"),
    "twice": ("a: 1\nb: 2\na: 3", "the key 'a' stands there twice"),
    "number as key": ("1: a", "a key that is no name"),
    "truth as key": ("on: a", "a key that is no name"),
    "null as key": ("~: a", "a key that is no name"),
    "list as key": ("[a]: b", "a key that is no name"),
    "no truth": ("a: !!bool maybe", "cannot be read as bool"),
    "no number": ("a: !!int ''", "cannot be read as int"),
    "no fraction": ("a: !!float x", "cannot be read as float"),
    "date": ("a: !!timestamp 2024-13-45", "could not determine a constructor"),
    "bytes": ("a: !!binary aGk=", "could not determine a constructor"),
    "set": ("a: !!set {b}", "could not determine a constructor"),
    "code": ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    "control character": ("a: \x07", "special characters are not allowed"),
    "two documents": ("a: 1\n---\nb: 2", "expected a single document"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_recipes(kind: str, tmp_path: Path) -> None:
    text, message = HOSTILE[kind]
    file = tmp_path / "mine.yaml"
    indented = "".join(f"  {line}\n" for line in text.splitlines())
    file.write_text(text if kind == "two documents" else f"verb: index\nsettings:\n{indented}")
    began = time.process_time()
    with pytest.raises(InputError, match="is not valid YAML") as caught:
        find_recipe(str(file), "index")
    assert message in caught.value.what
    assert str(file) in caught.value.what
    assert len(str(caught.value)) < 5_000
    assert time.process_time() - began < 10


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if "\n" not in HOSTILE[kind][0]])
def test_hostile_overrides(kind: str) -> None:
    text, message = HOSTILE[kind]
    value = text.removeprefix("a: ").removeprefix("seed: ")
    value = value if value != text else f"{{{text}}}" if "&" not in text else text
    with pytest.raises(SettingsError, match="is not a YAML value") as caught:
        resolve("index", overrides=[f"key={value}"])
    assert message in caught.value.what
    assert "--set key=" in caught.value.what
    assert len(str(caught.value)) < 5_000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2024-01-01", "2024-01-01"),
        ("2024-13-45", "2024-13-45"),
        ("9223372036854775807", 2**63 - 1),
        ("{a: &a [1, 2], b: *a}", {"a": [1, 2], "b": [1, 2]}),
        ("{a: &a {x: 1, y: 2}, b: {<<: *a, y: 3}}", {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}),
        ("{'1': a}", {"1": "a"}),
        ("１", "１"),
        ("１e5", "１e5"),
    ],
)
def test_what_a_setting_can_be(text: str, value: Any) -> None:
    assert resolve("index", overrides=[f"key={text}"]) == {"key": value}


def test_a_path_of_thousands_of_parts() -> None:
    with pytest.raises(SettingsError, match="1,999 deep"):
        resolve("index", overrides=[".".join("a" * 2_000) + "=1"])


def test_a_recipe_of_megabytes(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("# " + "x" * 2**21)
    with pytest.raises(InputError, match="more than 1,048,576 bytes"):
        find_recipe(str(file), "index")


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 5000 + ".yaml", "a\0b", "a\0b.yaml", ""])
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(IsthmusError):
        find_recipe(name, "index")


class Example(Settings):
    verb = "index"

    rate: float = 1.0
    name: str = ""


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), [["x"] * 10**5] * 3, 10**5000],
    ids=["nan", "infinite", "long", "digits"],
)
def test_values_that_no_setting_can_have(value: Any) -> None:
    for key in ("rate", "name"):
        with pytest.raises(SettingsError, match=f"{key} = .* cannot be used") as caught:
            Example.parse({key: value}, "test")
        assert len(str(caught.value)) < 5_000


def test_a_path_that_is_not_utf8_survives_a_snapshot(tmp_path: Path) -> None:
    value = {"verb": "index", "identity": {"corpus": os.fsdecode(b"caf\xe9.jsonl"), "name": "é"}}
    write_json(tmp_path / "isthmus.json", value)
    assert read_snapshot(tmp_path) == value


def test_arguments_that_are_not_utf8_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["isthmus", "search", "index", os.fsdecode(b"caf\xe9")]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "error: the argument 'caf\\udce9' is not UTF-8\n" in capsys.readouterr().err
