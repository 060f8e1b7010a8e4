"""Filters over the metadata of documents: which of them a search may find.

A filter is a mapping of fields to values or to operators that begin with `$`:
{"year": {"$gte": 2020}, "lang": "en"}. All of it must hold; a bare value means $eq and a bare list
$in. A list of a document passes where one of its elements does. A document without the field passes
no test but $ne, $nin, $not and {"$exists": false}. Numbers are compared with numbers, and texts
with texts, character by character, which is the order of ISO dates.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from isthmus.config.sealed_json import UnreadableError, parse_json
from isthmus.errors import InputError, choices, shown
from isthmus.indexes.columns import (
    BOOLEAN,
    COMPARED,
    LONG,
    LONGEST,
    MIXED,
    NUMBER,
    TEXT,
    Column,
    Columns,
    Mask,
    type_of,
)

_DEEPEST = 10  # filters within filters
_MOST_PARTS = 256  # each is a pass over all documents
_MOST_VALUES = 10_000  # of all lists together
_ORDERS = ("$gt", "$gte", "$lt", "$lte")
_TESTS = ("$eq", "$ne", *_ORDERS, "$in", "$nin", "$exists", "$not")
_JOINTS = ("$and", "$or", "$not")
_SIGNS = {"=": "$eq"} | dict(zip(("==", "!=", ">", ">=", "<", "<="), _TESTS[:6], strict=True))
_OPTION = re.compile(r"\s*([^=!<>]*[^=!<>\s])\s*([=!<>]++)\s*(.*\S)\s*", re.DOTALL)
_OPTIONS = re.compile(r'([^\s=!<>"]+)\s*([=!<>]++)\s*("[^"]*"|[^\s"]\S*)(?:\s+|$)')
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_EXAMPLE = '{"year": {"$gte": 2020}, "lang": "en"}'
_CALLED = {TEXT: "a text", NUMBER: "a number", BOOLEAN: "true or false"}
_UNFIT = {
    MIXED: "is of one type in some documents and of another in others",
    LONG: f"holds texts of more than {LONGEST:,} characters",
}
_WRITTEN = "written"
_ANY = "any"


@dataclass(frozen=True)
class Written:
    """A value as it was typed: the type of its field decides what it is."""

    text: str


class Filter(ABC):
    """A condition on the metadata of documents; `parse` makes one."""

    @abstractmethod
    def check(self, types: Mapping[str, str]) -> Filter:
        """The filter with its values in the types of an index, which `types_of` gives.

        Raises an InputError where a field is unknown, or a value of another type.
        """

    @abstractmethod
    def mask(self, columns: Columns) -> Mask:
        """Which documents of a segment pass, once checked; the segment may lack any field."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The filter as JSON in one spelling, once checked; `parse` makes the same one of it."""


@dataclass(frozen=True)
class Test(Filter):
    """One test of one field: $in, an order or $exists, with values of one type."""

    field: str
    operator: str
    values: tuple[Any, ...]
    type: str

    def check(self, types: Mapping[str, str]) -> Test:
        """The test with its values in the type of the field."""
        if self.operator == "$exists":
            return self
        found = types.get(self.field)
        if found is None:
            _refuse(
                f"no document has a field {self.field!r}",
                "name a field that documents have",
                choices(self.field, types),
            )
        if found not in COMPARED:
            _refuse(f"{self.field!r} {_UNFIT[found]}", "filter by another field")
        if self.type == _WRITTEN:
            return self._typed(found)
        if self.type not in (_ANY, found):
            what = f"{self.field!r} is {_CALLED[found]}, and {shown(self.values[0])} is not"
            _refuse(what, f"compare it with {_CALLED[found]}")
        return self

    def mask(self, columns: Columns) -> Mask:
        """Which documents have a value that passes."""
        column = columns.fields.get(self.field)
        if column is None:
            return np.zeros(columns.rows, dtype=np.bool_)
        return column.which(self._hits(column), columns.rows)

    def to_dict(self) -> dict[str, Any]:
        """The test as JSON."""
        assert self.type != _WRITTEN, "a filter is checked before it is used"
        value = list(self.values) if self.operator == "$in" else self.values[0]
        return {self.field: {self.operator: value}}

    def _hits(self, column: Column) -> Mask | None:
        if self.operator == "$exists":
            return None
        assert self.type in (_ANY, column.type), "a filter is checked before it is used"
        if self.operator == "$in":
            return column.among(self.values)
        hits = column.below(self.values[0], inclusive=self.operator in ("$lte", "$gt"))
        return hits if self.operator in ("$lt", "$lte") else ~hits

    def _typed(self, type_: str) -> Test:
        values = tuple(_value(self.field, one.text, type_) for one in self.values)
        if type_ == BOOLEAN and self.operator in _ORDERS:
            _refuse_order(self.field, values[0])
        return replace(self, values=values, type=type_)


@dataclass(frozen=True)
class Joint(Filter):
    """Filters of which all must hold ($and, of none too), or one ($or), or the only one not."""

    operator: str
    parts: tuple[Filter, ...]

    def check(self, types: Mapping[str, str]) -> Joint:
        """The parts, checked."""
        return Joint(self.operator, tuple(part.check(types) for part in self.parts))

    def mask(self, columns: Columns) -> Mask:
        """Which documents pass, from those that pass each part."""
        if self.operator == "$not":
            return ~self.parts[0].mask(columns)
        every = self.operator == "$and"
        mask = np.full(columns.rows, every)
        for part in self.parts:
            (np.logical_and if every else np.logical_or)(mask, part.mask(columns), out=mask)
        return mask

    def to_dict(self) -> dict[str, Any]:
        """The parts as JSON."""
        parts = [part.to_dict() for part in self.parts]
        if not parts:
            return {}
        return {self.operator: parts[0] if self.operator == "$not" else parts}


def parse(given: Mapping[str, Any]) -> Filter:
    """The filter that a mapping of fields and operators spells; all of it is looked at.

    Raises an InputError where it spells none. Which fields there are, `Filter.check` asks.
    """
    return _Parser().filter(given, 0)


class _Parser:
    """Reads one filter, and counts what is in it."""

    def __init__(self) -> None:
        self._parts = self._values = 0

    def filter(self, given: object, depth: int) -> Filter:
        """A mapping of fields and joints, all of which must hold."""
        if not isinstance(given, Mapping):
            _refuse(f"{shown(given)} is no mapping of fields to values", f"write {_EXAMPLE}")
        self._count(depth)
        return _all([self._entry(key, value, depth + 1) for key, value in given.items()])

    def _entry(self, key: object, value: object, depth: int) -> Filter:
        if not isinstance(key, str):
            _refuse(f"{shown(key)} is no name of a field", "give names as texts")
        if key == "$not":
            return Joint(key, (self.filter(value, depth),))
        if key in _JOINTS:
            if not isinstance(value, list) or not value:
                _refuse(f"{key} takes a list of filters, not {shown(value)}", "give it a list")
            return Joint(key, tuple(self.filter(part, depth) for part in value))
        if key in _TESTS:
            _refuse(f"{key} is of no field", f'write {{"FIELD": {{"{key}": VALUE}}}}')
        if key.startswith("$"):
            _refuse(f"there is no operator {key!r}", "choose one of these", choices(key, _JOINTS))
        return self._field(key, value, depth)

    def _field(self, name: str, value: object, depth: int) -> Filter:
        if isinstance(value, Mapping) and not value:
            _refuse(f"{name!r} is compared with nothing", f"write {_EXAMPLE}")
        if not isinstance(value, Mapping):
            value = {"$in" if isinstance(value, list) else "$eq": value}
        return _all([self._test(name, key, one, depth) for key, one in value.items()])

    def _test(self, name: str, operator: object, value: object, depth: int) -> Filter:
        if operator not in _TESTS:
            _refuse(
                f"{name!r}: there is no operator {shown(operator)}",
                "choose one of these",
                choices(str(operator), _TESTS),
            )
        self._count(depth)
        if operator == "$not":
            if not isinstance(value, Mapping):
                _refuse(f"{name!r}: $not takes a test, not {shown(value)}", "use $ne")
            return Joint("$not", (self._field(name, value, depth + 1),))
        if operator == "$exists":
            if not isinstance(value, bool):
                _refuse(f"{name!r}: $exists takes true or false, not {shown(value)}", "say which")
            return _unless(not value, Test(name, "$exists", (True,), BOOLEAN))
        if operator in _ORDERS:
            return self._comparison(name, str(operator), [value])
        if operator in ("$eq", "$ne"):
            value = [value]
        elif not isinstance(value, list):
            _refuse(f"{name!r}: {operator} takes a list, not {shown(value)}", "use $eq or $ne")
        return _unless(operator in ("$ne", "$nin"), self._comparison(name, "$in", value))

    def _comparison(self, name: str, operator: str, values: list[Any]) -> Test:
        self._values += len(values)
        if self._values > _MOST_VALUES:
            _refuse(f"it lists more than {_MOST_VALUES:,} values", "list fewer")
        types = {_type(name, value) for value in values}
        if len(types) > 1:
            _refuse(f"{name!r}: {shown(values)} are of several types", "list values of one type")
        (type_,) = types or {_ANY}
        if type_ == BOOLEAN and operator in _ORDERS:
            _refuse_order(name, values[0])
        return Test(name, operator, tuple(values), type_)

    def _count(self, depth: int) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            _refuse(f"it has more than {_MOST_PARTS} parts", "use $in in place of many tests")
        if depth > _DEEPEST:
            _refuse(f"it is nested more than {_DEEPEST} deep", "write it flatter")


def _all(parts: list[Filter]) -> Filter:
    return parts[0] if len(parts) == 1 else Joint("$and", tuple(parts))


def _unless(negated: bool, test: Test) -> Filter:
    return Joint("$not", (test,)) if negated else test


def _type(name: str, value: object) -> str:
    """The type of a value that a field is compared with."""
    if isinstance(value, Written):
        return _WRITTEN
    if value is None:
        _refuse(f"{name!r} is compared with null", 'find what lacks it by {"$exists": false}')
    found = type_of(value)
    if found == MIXED:
        what = f"{name!r} is compared with {shown(value)}"
        _refuse(what, "compare it with a text, a number, true or false")
    return TEXT if found == LONG else found


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """The filter that options such as `year>=2020` spell together, for `parse`.

    Its values are `Written`: `Filter.check` makes them of the type of the field.
    """
    parts = [_spelt(_OPTION.fullmatch(text), text) for text in texts]
    return {"$and": parts} if parts else {}


def parse_text(text: str) -> Filter:
    """The filter that a text spells: one in JSON, or tests such as `year>=2020 lang=en`."""
    text = text.strip()
    if text.startswith("{"):
        try:
            return parse(parse_json(text.encode(errors="surrogatepass")))
        except UnreadableError as error:
            _refuse(f"{shown(text)} is not JSON: {error}", f"write {_EXAMPLE}")
    parts, place = [], 0
    while place < len(text):
        found = _OPTIONS.match(text, place)
        parts.append(_spelt(found, text[place:]))
        place = found.end() if found else place
    return parse({"$and": parts} if parts else {})


def _spelt(found: re.Match[str] | None, text: str) -> dict[str, Any]:
    """One test as `parse` takes it, of a field, a sign and a value, perhaps in quotation marks."""
    if found is None or found[2] not in _SIGNS:
        _refuse(
            f"{shown(text)} does not compare a field with a value",
            'write it as year>=2020, lang=en, tag!=draft or name="two words"',
            ", ".join(_SIGNS),
        )
    value = found[3]
    quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return {found[1]: {_SIGNS[found[2]]: Written(value[1:-1] if quoted else value)}}


def _value(name: str, text: str, type_: str) -> Any:
    """What was typed, as a value of this type."""
    if type_ == TEXT:
        return text
    if type_ == BOOLEAN and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if type_ == NUMBER and _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    return _refuse(f"{name!r} is {_CALLED[type_]}, and {text!r} is not", f"give {_CALLED[type_]}")


def _refuse_order(name: str, value: object) -> NoReturn:
    _refuse(f"{name!r}: {shown(value)} is neither more nor less", "compare it by $eq or $ne")


def _refuse(what: str, fix: str, expected: str = "") -> NoReturn:
    raise InputError(f"filter: {what}", fix, expected)
