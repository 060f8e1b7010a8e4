"""What each operator finds, what is refused by name, and files of columns made to do harm."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.errors import InputError
from isthmus.indexes.columns import build_columns, check, read_columns, types_of, write_columns
from isthmus.indexes.filters import parse, parse_options

DOCUMENTS: list[dict[str, Any]] = [
    {"year": 2019, "lang": "en", "tags": ["draft", "news"], "day": "2020-02-01", "open": True,
     "n": 2**53},
    {"year": 2020, "lang": "de", "tags": ["news"], "day": "2020-10-01", "open": False,
     "n": 2**53 + 1, "1": "x"},
    {"year": 2021.5, "lang": "en", "tags": [], "sizes": [1, 9], "kind": "a", "note": "x" * 1001},
    {"lang": None, "tags": "news", "sizes": [5], "kind": 1, "n": 2},
]  # fmt: skip
COLUMNS = build_columns(DOCUMENTS)
TYPES = types_of([COLUMNS])

FOUND: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [0, 1, 2, 3]),
    ({"year": 2020}, [1]),
    ({"year": [2019, 2021.5]}, [0, 2]),
    ({"year": {"$gte": 2020}}, [1, 2]),
    ({"year": {"$gt": 2019, "$lt": 2021}}, [1]),
    ({"year": {"$lte": 2020}, "lang": "en"}, [0]),
    ({"day": {"$gte": "2020-03"}}, [1]),
    ({"open": True}, [0]),
    ({"open": {"$ne": True}}, [1, 2, 3]),
    ({"lang": {"$ne": "en"}}, [1, 3]),
    ({"lang": {"$nin": ["en", "fr"]}}, [1, 3]),
    ({"lang": {"$in": []}}, []),
    ({"tags": "news"}, [0, 1, 3]),
    ({"tags": {"$in": ["draft", "other"]}}, [0]),
    ({"tags": {"$ne": "draft"}}, [1, 2, 3]),
    ({"sizes": {"$gt": 4, "$lt": 6}}, [2, 3]),  # 9 and 1: each test is of any element
    ({"n": {"$gt": 2**53}}, [1]),
    ({"n": [2**53, 2.5, 2**70]}, [0]),
    ({"n": {"$lt": 2.5}}, [3]),
    ({"n": {"$lte": 2**70, "$gt": -(2**70)}}, [0, 1, 3]),
    ({"n": {"$gte": 2.0**53}}, [0, 1]),
    ({"year": {"$lt": 10**300}}, [0, 1, 2]),
    ({"tags": {"$exists": False}}, [2]),
    ({"kind": {"$exists": True}}, [2, 3]),
    ({"nothing": {"$exists": False}}, [0, 1, 2, 3]),
    ({"$or": [{"year": 2019}, {"lang": "de"}]}, [0, 1]),
    ({"$and": [{"lang": "en"}, {"year": 2019}], "open": True}, [0]),
    ({"$not": {"year": {"$gte": 2020}}}, [0, 3]),
    ({"year": {"$not": {"$gte": 2020}}}, [0, 3]),
]


@pytest.mark.parametrize(("written", "found"), FOUND)
def test_what_is_found(written: dict[str, Any], found: list[int]) -> None:
    mask = parse(written).check(TYPES).mask(COLUMNS)
    assert np.flatnonzero(mask).tolist() == found


def test_the_same_is_found_in_files(tmp_path: Path) -> None:
    write_columns(tmp_path, COLUMNS)
    read = read_columns(tmp_path, len(DOCUMENTS))
    assert types_of([read]) == TYPES
    for written, found in FOUND:
        assert np.flatnonzero(parse(written).check(TYPES).mask(read)).tolist() == found


REFUSED: list[tuple[Any, str]] = [
    ([], "no mapping"),
    ({"year": {"$gtee": 1}}, "'\\$gtee'.*expected: \\$gte,"),
    ({"year": {"gte": 1}}, "'gte'.*expected: \\$gte,"),
    ({"$nor": [{"year": 1}]}, "'\\$nor'.*expected: \\$or,"),
    ({"$gte": 1}, r"\$gte is of no field"),
    ({"yaer": 1}, "'yaer'.*expected: year,"),
    ({"gte": 1}, "no document has a field 'gte'"),
    ({"year": "2020"}, "'year' is a number, and '2020' is not"),
    ({"year": True}, "'year' is a number, and True is not"),
    ({"lang": {"$lt": 3}}, "'lang' is a text, and 3 is not"),
    ({"open": 1}, "'open' is true or false, and 1 is not"),
    ({"open": {"$gt": False}}, "'open': False is neither more nor less"),
    ({"kind": "a"}, "'kind' is of one type in some documents and of another in others"),
    ({"note": "x"}, "'note' holds texts of more than 1,000 characters"),
    ({"year": [1, "a"]}, "'year'.* several types"),
    ({"year": None}, "'year' is compared with null"),
    ({"year": float("nan")}, "'year' is compared with nan"),
    ({"year": {"$in": 3}}, r"'year': \$in takes a list"),
    ({"year": {}}, "'year' is compared with nothing"),
    ({"year": {"$exists": 1}}, "'year': .* true or false"),
    ({"$or": []}, r"\$or takes a list"),
    ({"$or": [{"year": 1}] * 300}, "more than 256 parts"),
    ({"year": list(range(10_001))}, "more than 10,000 values"),
    (json.loads('{"$not":' * 12 + "{}" + "}" * 12), "nested more than 10 deep"),
]


@pytest.mark.parametrize(("written", "message"), REFUSED)
def test_what_is_refused(written: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(written).check(TYPES)
    caught.match(f"(?s)filter: .*{message}")


OPTIONS: list[tuple[list[str], list[int]]] = [
    ([], [0, 1, 2, 3]),
    (["year>=2020"], [1, 2]),
    (["year >= 2020", "lang==en"], [2]),
    (["year>2019", "year<2021.5"], [1]),
    (["tags!=draft"], [1, 2, 3]),
    (["open=false"], [1]),
    (["day<=2020-02-01"], [0]),
    (["1=x"], [1]),
    (["lang=2020"], []),
]


@pytest.mark.parametrize(("options", "found"), OPTIONS)
def test_options_take_the_type_of_their_field(options: list[str], found: list[int]) -> None:
    mask = parse(parse_options(options)).check(TYPES).mask(COLUMNS)
    assert np.flatnonzero(mask).tolist() == found


@pytest.mark.parametrize(
    "option",
    ["", "year", "=2020", "year=", "year=>2020", "year!2020", "year=x", "open>true"],
)
def test_options_that_say_nothing_are_refused(option: str) -> None:
    with pytest.raises(InputError):
        parse(parse_options([option])).check(TYPES)


def test_segments_have_fields_of_their_own() -> None:
    other = build_columns([{"year": "unknown", "size": 2**53 + 1}, {"size": 2**53}])
    types = types_of([COLUMNS, other])
    assert types["year"] == "mixed"
    assert types["size"] == "number"
    large = parse({"size": {"$gt": 2**53}}).check(types)
    assert [large.mask(one).tolist() for one in (COLUMNS, other)] == [[False] * 4, [True, False]]
    with pytest.raises(InputError, match="'year' is of one type in some"):
        parse({"year": 2020}).check(types)


def test_true_is_not_one_where_filters_are_keys() -> None:
    assert parse({"a": True}) != parse({"a": 1})
    assert parse({"a": 1}) == parse({"a": {"$in": [1]}})


def place(file: str, index: int, value: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        array = np.load(folder / f"{file}.npy")
        array[index] = value
        np.save(folder / f"{file}.npy", array)

    return change


def saved(file: str, array: Any) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / f"{file}.npy", np.asarray(array))


def stated(field: int, part: int, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        fields = json.loads((folder / "fields.json").read_text())
        fields[field][part] = value
        (folder / "fields.json").write_text(json.dumps(fields))

    return change


def written(content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "fields.json").write_text(content) and None


HARM = {
    "a document that is not there": place("documents", 0, 4),
    "a document before the first": place("documents", 0, -1),
    "a text that is not there": place("codes", 0, 10**6),
    "a text before the first": place("codes", 0, -1),
    "a text that ends behind all": place("starts", -1, 10**6),
    "a text that starts before all": place("starts", 0, -1),
    "a text that ends before it starts": place("starts", 1, 10**6),
    "too few numbers": saved("real", np.zeros(0)),
    "numbers of another type": saved("real", np.zeros(9, dtype="f4")),
    "a table of numbers": saved("real", np.zeros((9, 9))),
    "objects": saved("real", np.array([None] * 9)),
    "a type that is not there": stated(0, 1, "place"),
    "a type of other files": stated(0, 1, "text"),
    "numbers that are called true and false": stated(0, 1, "boolean"),
    "a field without a document for each value": stated(0, 2, {"real": 3}),
    "texts without a start": stated(1, 2, {"codes": 4, "starts": 0, "text": 0}),
    "a file that is no column": stated(0, 2, {"../real": 1}),
    "a negative length": stated(0, 2, {"real": -1, "documents": -1}),
    "a length that is no number": stated(0, 2, {"real": True, "documents": True}),
    "a field of two columns": stated(1, 0, "year"),
    "a name that is none": stated(0, 0, None),
    "a mapping": written("{}"),
    "no JSON": written("[["),
    "nested without end": written("[" * 10**5),
    "a number without end": written("9" * 5000),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_places_outside_are_refused(harm: Callable[[Path], None], tmp_path: Path) -> None:
    write_columns(tmp_path, COLUMNS)
    check(tmp_path, len(DOCUMENTS))
    harm(tmp_path)
    with pytest.raises((ValueError, InputError)):
        check(tmp_path, len(DOCUMENTS))


def test_columns_of_other_documents_are_refused(tmp_path: Path) -> None:
    write_columns(tmp_path, build_columns([{"year": 1}, {"year": 2}]))
    for rows in (1, 3):
        with pytest.raises(ValueError, match="document"):
            check(tmp_path, rows)
        with pytest.raises(InputError, match="damaged"):
            read_columns(tmp_path, rows)


def test_filtering_loads_no_library_of_tables() -> None:
    code = (
        "import sys, pyarrow; from isthmus.indexes.filters import parse;"
        " from isthmus.indexes.columns import build_columns;"
        " c = build_columns([{'a': [1, 2], 'b': 'x'}]);"
        " parse({'a': [1, 2], 'b': {'$lt': 'y'}}).mask(c);"
        " print(*{'pandas', 'pyarrow.compute', 'torch', 'numpy.ma'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
