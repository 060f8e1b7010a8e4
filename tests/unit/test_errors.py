"""Every error a user meets has four parts, and the nearest name comes first."""

from __future__ import annotations

import pickle

import pytest

from isthmus import errors
from isthmus.errors import IsthmusError, MissingPackageError, SettingsError, choices, nearest


def test_four_parts_in_the_message() -> None:
    error = SettingsError("rate = 2", where="corruption.rate", allowed="below 1", remedy="lower it")
    assert str(error).splitlines() == [
        "rate = 2", "  where:   corruption.rate", "  allowed: below 1", "  to do:   lower it",
    ]  # fmt: skip


def test_none_of_the_parts_can_be_left_out() -> None:
    with pytest.raises(TypeError):
        IsthmusError("what", where="here", allowed="that")  # type: ignore[call-arg]


def test_an_error_of_a_worker_process_arrives_whole() -> None:
    for error in (
        SettingsError("rate = 2", where="rate", allowed="below 1", remedy="lower it"),
        MissingPackageError("faiss", extra="ann", needed_for="approximate search"),
    ):
        arrived = pickle.loads(pickle.dumps(error))
        assert type(arrived) is type(error)
        assert str(arrived) == str(error)


def test_all_exceptions_are_one_family() -> None:
    kinds = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, Exception)]
    assert len(kinds) >= 6
    assert all(issubclass(kind, IsthmusError) for kind in kinds)


def test_a_missing_package_gives_the_command() -> None:
    error = MissingPackageError("faiss", extra="ann", needed_for="approximate search")
    assert "'faiss' is not installed" in error.what
    assert error.remedy == "pip install 'isthmus[ann]'"
    assert error.where == "approximate search"


def test_nearest_first_then_the_rest_by_alphabet() -> None:
    known = ["whole_word", "uniform", "nested", "generator"]
    assert nearest("unifrom", known) == ["uniform", "generator", "nested", "whole_word"]
    assert nearest("zzz", known) == sorted(known)


def test_choices_are_cut_and_counted() -> None:
    assert choices("x", []) == "nothing: there are none"
    assert choices("b", ["c", "b", "a"]) == "b, a, c"
    many = [f"name{number:02d}" for number in range(20)]
    shown = choices("name07", many)
    assert shown.startswith("name07, ")
    assert shown.endswith("… (20 in all)")
    assert shown.count(",") == 12
