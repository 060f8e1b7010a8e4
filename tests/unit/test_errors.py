"""Every error says what is wrong and what to do, and the nearest name comes first."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from isthmus.errors import (
    MissingPackageError,
    SettingsError,
    choices,
    nearest,
    similar,
)


def test_a_message_has_choices_only_where_there_are_any() -> None:
    error = SettingsError("corruption.rate = 2", "lower it", "0 to 1")
    assert str(error) == "corruption.rate = 2\n  expected: 0 to 1\n  fix: lower it"
    assert str(SettingsError("no rate", "set one")) == "no rate\n  fix: set one"


@pytest.mark.parametrize(
    ("missing", "found"), [("runs/bwo", "runs/bow"), ("rusn/bow/final", "runs")]
)
def test_what_looks_like_a_missing_path(missing: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "runs" / "bow").mkdir(parents=True)
    assert similar(tmp_path / missing) == str(tmp_path / found)


def test_an_error_of_a_worker_process_arrives_whole() -> None:
    for error in (
        SettingsError("rate = 2", "lower it", "0 to 1"),
        MissingPackageError("faiss", "ann", "approximate search"),
    ):
        arrived = pickle.loads(pickle.dumps(error))
        assert type(arrived) is type(error)
        assert str(arrived) == str(error)


def test_a_missing_package_gives_the_command() -> None:
    error = MissingPackageError("faiss", "ann", "approximate search")
    assert "'faiss', which is not installed" in error.what
    assert error.fix == "pip install 'isthmus[ann]'"
    assert "approximate search" in error.what


def test_nearest_first_then_the_rest_by_alphabet() -> None:
    known = ["whole_word", "uniform", "nested", "generator"]
    assert nearest("unifrom", known) == ["uniform", "generator", "nested", "whole_word"]
    assert nearest("zzz", known) == sorted(known)


def test_choices_are_cut_and_counted() -> None:
    assert choices("x", []) == ""
    assert choices("b", ["c", "b", "a"]) == "b, a, c"
    many = [f"name{number:02d}" for number in range(20)]
    shown = choices("name07", many)
    assert shown.startswith("name07, ")
    assert shown.endswith("… (20 in all)")
    assert shown.count(",") == 12
