"""Filters give what a plain reading of their definition gives, whatever documents and they are."""

from __future__ import annotations

import json
import math
import operator
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.errors import InputError
from isthmus.indexes.columns import build_columns, check, read_columns, types_of, write_columns
from isthmus.indexes.filters import parse, parse_options

EDGES = [2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 10**300, 0.5, -0.0, 5e-324, 1e308]
NUMBERS = st.integers(-3, 3) | st.sampled_from(EDGES) | st.floats(-3, 3) | st.integers()
TEXTS = st.sampled_from(["", "a", "b", "é", "\U0001f600", "\uffff", "a\0", "2020-01-31"]) | st.text(
    max_size=3
)
WHOLE = st.integers(-3, 3) | st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, -(2**63)])
VALUES = {"n": NUMBERS, "w": WHOLE, "t": TEXTS, "b": st.booleans(), "s": TEXTS}
"""What the fields of documents hold: "w" nothing but whole numbers that fit 64 bits."""
BETWEEN = st.sampled_from([-0.5, 0.5, 2.5, 2.0**53, 2**53 + 1, 1e300, -(2**64)])
WANTED = VALUES | {"n": NUMBERS | BETWEEN, "w": WHOLE | BETWEEN}


def fields() -> st.SearchStrategy[dict[str, Any]]:
    """The metadata of a document: each field may be missing, null, one value or a list."""
    kinds = {}
    for name, values in VALUES.items():
        several = st.lists(values, max_size=3) if name != "b" else st.none()
        kinds[name] = st.none() | values | several
    return st.fixed_dictionaries({}, optional=kinds)


def comparisons(name: str) -> st.SearchStrategy[Any]:
    """What a field can be compared with: bare, by one operator, or by several."""
    value = WANTED[name]
    orders = {} if name == "b" else dict.fromkeys(("$gt", "$gte", "$lt", "$lte"), value)
    of_one = st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("$eq", "$ne"), value),
            **dict.fromkeys(("$in", "$nin"), st.lists(value, max_size=4)),
            "$exists": st.booleans(),
            **orders,
        },
    ).filter(bool)
    return value | st.lists(value, max_size=3) | of_one | of_one.map(lambda one: {"$not": one})


FILTERS = st.recursive(
    st.lists(
        st.sampled_from(sorted(VALUES)).flatmap(lambda n: st.tuples(st.just(n), comparisons(n)))
    ).map(dict),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("$and", "$or"), st.lists(inner, min_size=1, max_size=3)),
            "$not": inner,
        },
    ),
    max_leaves=6,
)
ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le,
}  # fmt: skip


def passes(document: Mapping[str, Sequence[Any]], filter_: Mapping[str, Any]) -> bool:
    """Whether a document, whose fields are lists of values, meets a filter."""
    for key, value in filter_.items():
        if key in ("$and", "$or"):
            found = (all if key == "$and" else any)([passes(document, one) for one in value])
        elif key == "$not":
            found = not passes(document, value)
        else:
            found = field_passes(document.get(key, []), value)
        if not found:
            return False
    return True


def field_passes(values: Sequence[Any], wanted: Any) -> bool:
    if isinstance(wanted, list):
        wanted = {"$in": wanted}
    if not isinstance(wanted, dict):
        wanted = {"$eq": wanted}
    return all(holds(values, name, one) for name, one in wanted.items())


def holds(values: Sequence[Any], name: str, wanted: Any) -> bool:
    if name == "$not":
        return not field_passes(values, wanted)
    if name == "$exists":
        return bool(values) == wanted
    if name in ORDERS:
        return any(ORDERS[name](value, wanted) for value in values)
    listed = wanted if name in ("$in", "$nin") else [wanted]
    return (name in ("$ne", "$nin")) != any(value in listed for value in values)


def as_stored(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, list[Any]]]:
    """The values of each document; numbers are rounded unless all of the field are 64-bit."""
    found: list[dict[str, list[Any]]] = [
        {
            name: [
                one for one in (value if isinstance(value, list) else [value]) if one is not None
            ]
            for name, value in document.items()
        }
        for document in documents
    ]
    numbers = [value for document in found for value in document.get("n", [])]
    if not all(value == int(value) and -(2**63) <= value < 2**63 for value in numbers):
        for document in found:
            document["n"] = [float(value) for value in document.get("n", [])]
    return found


@given(st.lists(st.lists(fields(), max_size=8), min_size=1, max_size=3), FILTERS)
def test_masks_are_those_of_brute_force(
    segments: list[list[dict[str, Any]]], filter_: dict[str, Any]
) -> None:
    columns = [build_columns(documents) for documents in segments]
    # That a field is known to some segment makes it one that can be asked for.
    types = {"n": "number", "w": "number", "t": "text", "b": "boolean", "s": "text"}
    assert types_of(columns).items() <= types.items()
    found = parse(filter_).check(types)
    for one, documents in zip(columns, segments, strict=True):
        expected = [passes(document, filter_) for document in as_stored(documents)]
        assert found.mask(one).tolist() == expected


@given(st.lists(fields(), max_size=8))
def test_columns_come_back_from_files(documents: list[dict[str, Any]]) -> None:
    columns = build_columns(documents)
    with tempfile.TemporaryDirectory() as folder:
        write_columns(Path(folder), columns)
        check(Path(folder), len(documents))
        read = read_columns(Path(folder), len(documents))
        assert list(read.fields) == list(columns.fields)
        for name, column in columns.fields.items():
            again = read.fields[name]
            assert (again.type, list(again.texts)) == (column.type, list(column.texts))
            np.testing.assert_array_equal(again.values, column.values, strict=True)
            assert (again.documents is None) == (column.documents is None)
            if column.documents is not None:
                np.testing.assert_array_equal(again.documents, column.documents, strict=True)


@given(FILTERS)
def test_a_filter_comes_back_from_json(filter_: dict[str, Any]) -> None:
    found = parse(filter_)
    again = parse(json.loads(json.dumps(found.to_dict())))
    assert again == found
    assert hash(again) == hash(found)


NAMES = st.sampled_from([
    *VALUES, "mixed", "long", "other", "", "$x", "$eq", "$in", "$gte", "$gt", "$nin", "$exists",
    "$and", "$or", "$not", "gte", "\ud800",
])  # fmt: skip
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | NUMBERS
    | st.floats()
    | TEXTS
    | st.sampled_from(["\ud800", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
KNOWN = build_columns([
    {"n": 1, "w": 2, "t": "a", "b": True, "s": ["x", "y"], "mixed": 1, "long": "x" * 1001},
    {"n": 0.5, "mixed": "a", "long": "a"},
])  # fmt: skip


@given(st.dictionaries(NAMES, ANYTHING, max_size=3) | ANYTHING)
@example({"n": math.nan})
@example({"mixed": "a"})
@example({"long": "a"})
def test_any_json_is_a_mask_or_refused(anything: Any) -> None:
    try:
        found = parse(anything).check(types_of([KNOWN]))
    except InputError:
        return
    mask = found.mask(KNOWN)
    assert (mask.dtype, mask.shape) == (np.bool_, (2,))
    assert parse(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found


@given(
    st.lists(st.text(max_size=8) | st.from_regex(r"[nwtbs] ?(=|==|!=|<|>=) ?\w+", fullmatch=True))
)
def test_any_options_are_a_mask_or_refused(options: list[str]) -> None:
    try:
        found = parse(parse_options(options)).check(types_of([KNOWN]))
    except InputError:
        return
    assert len(found.mask(KNOWN)) == 2
    assert parse(found.to_dict()) == found


@given(st.lists(st.dictionaries(st.sampled_from("abc"), ANYTHING), max_size=5))
def test_any_metadata_makes_columns(documents: list[dict[str, Any]]) -> None:
    columns = build_columns(documents)
    for name in columns.fields:
        found = parse({name: {"$exists": True}}).mask(columns)
        filled = [
            bool([one for one in value if one is not None])
            if isinstance(value := document.get(name), list)
            else value is not None
            for document in documents
        ]
        assert found.tolist() == filled
