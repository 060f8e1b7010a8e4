"""The metadata of documents in typed columns: what filters are compared with.

A field is of one type: text, number or boolean. A list of texts or numbers is as many values of its
document, and an empty list none. Two more types are compared with nothing, and say only which
documents have the field: "mixed", where documents disagree, and "long text".
"""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isthmus.collections.metadata import is_finite
from isthmus.errors import shown
from isthmus.indexes.arrays import GrowingArray, flush, mapped
from isthmus.indexes.structure import below, refusing, require

TEXT, NUMBER, BOOLEAN, LONG, MIXED = "text", "number", "boolean", "long text", "mixed"
COMPARED = (TEXT, NUMBER, BOOLEAN)
LONGEST = 1000
"""The characters of a text that can be compared; a field with a longer one is a long text."""

_FIELDS = "fields.json"
# What all columns have of each kind, one after the other: as many files however many fields.
_ARRAYS = {
    "documents": "i4",
    "whole": "i8",
    "real": "f8",
    "codes": "i4",
    "starts": "i8",
    "text": "u1",
}
FILES = (_FIELDS, *(f"{name}.npy" for name in _ARRAYS))
"""The files of the columns of one segment."""
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1  # of the whole numbers in a column

Mask = npt.NDArray[np.bool_]


class Texts(Sequence[bytes]):
    """Distinct texts in UTF-8, which sorts them as Python does; one text is read at a time."""

    def __init__(self, text: npt.NDArray[Any], starts: npt.NDArray[Any]) -> None:
        self.text, self.starts = text, starts

    def __len__(self) -> int:
        return max(0, len(self.starts) - 1)

    def __getitem__(self, place: Any) -> Any:
        return self.text[self.starts[place] : self.starts[place + 1]].tobytes()

    def find(self, text: str) -> int | None:
        """The place of a text; None where it is not among them."""
        wanted = _bytes(text)
        place = bisect_left(self, wanted)
        return place if place < len(self) and self[place] == wanted else None

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Texts:
        """These texts, which are sorted already."""
        starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(texts), dtype=np.uint8), starts)


_NO_TEXTS = Texts(np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.int64))


@dataclass(frozen=True)
class Column:
    """The values of one field, and which document each of them is of.

    `documents` is None where every document has one value, in their order. Values are numbers,
    places in `texts`, or 0 and 1; a type that cannot be compared has none. Numbers are int64 where
    all are whole, and else float64, which rounds whole ones beyond 2^53.
    """

    type: str
    documents: npt.NDArray[np.int32] | None
    values: npt.NDArray[Any]
    texts: Texts = _NO_TEXTS

    def which(self, hits: Mask | None, rows: int) -> Mask:
        """The documents that have one of the values that are hit; of any value where None."""
        if self.documents is None:
            return np.ones(rows, dtype=np.bool_) if hits is None else hits
        mask = np.zeros(rows, dtype=np.bool_)
        mask[self.documents if hits is None else self.documents[hits]] = True
        return mask

    def among(self, wanted: Iterable[Any]) -> Mask:
        """Which values are one of those wanted."""
        if self.type == NUMBER:
            return self._numbers_among(wanted)
        places = wanted if self.type == BOOLEAN else map(self.texts.find, wanted)
        table = np.zeros(max(2, len(self.texts)), dtype=np.bool_)
        table[[int(place) for place in places if place is not None]] = True
        found: Mask = table[self.values]
        return found

    def below(self, wanted: Any, inclusive: bool) -> Mask:
        """Which values are smaller than the one wanted, or equal to it where that is inclusive."""
        if self.type == TEXT:
            find = bisect_right if inclusive else bisect_left
            return np.asarray(self.values < find(self.texts, _bytes(wanted)))
        near, side = self._nearest(wanted)
        # No value lies between the one wanted and the nearest that a column can hold.
        equal = side >= 0 if inclusive else side > 0
        return np.asarray(self.values <= near if equal else self.values < near)

    def _numbers_among(self, wanted: Iterable[Any]) -> Mask:
        exact = sorted(near for near, side in map(self._nearest, wanted) if side == 0)
        if len(exact) < 2:  # several times faster
            return (
                np.asarray(self.values == exact[0]) if exact else np.zeros(len(self.values), bool)
            )
        known = np.array(exact, dtype=self.values.dtype)
        places = np.minimum(np.searchsorted(known, self.values), len(known) - 1)
        return np.asarray(known[places] == self.values)

    def _nearest(self, wanted: float) -> tuple[float, int]:
        """The number of the column's type next to one, and on which side of it that one lies."""
        near: float
        if self.values.dtype.kind == "i":
            near = min(max(math.floor(wanted), _SMALLEST), _LARGEST)
        else:
            near = float(wanted)
        return near, (wanted > near) - (wanted < near)


@dataclass(frozen=True)
class Columns:
    """The metadata of so many documents, by the names of fields."""

    rows: int
    fields: Mapping[str, Column]


class _Growing:
    """The column of one field while documents are read."""

    def __init__(self, type_: str) -> None:
        self.type = type_
        self.documents = array("i")
        self._values: array[Any] = array("q")
        self._codes: dict[str, int] = {}

    def add(self, document: int, value: Any, type_: str) -> None:
        """Adds one value of a document."""
        if type_ != self.type:
            self.type = _common(self.type, type_)
        if self.type == NUMBER:
            self._add_number(value)
        elif self.type == TEXT:
            self._values.append(self._codes.setdefault(value, len(self._codes)))
        elif self.type == BOOLEAN:
            self._values.append(value)
        elif self._codes or self._values:
            self._codes, self._values = {}, array("q")
        self.documents.append(document)

    def column(self, rows: int) -> Column:
        """The column of all values that were added; the documents are `rows`."""
        documents = np.array(self.documents, dtype=np.int32)
        in_turn = len(documents) == rows and bool((documents == np.arange(rows)).all())
        values, texts = self._stored()
        return Column(self.type, None if in_turn else documents, values, texts)

    def _add_number(self, value: float) -> None:
        if self._values.typecode == "q":
            with suppress(OverflowError):
                if value == int(value):
                    self._values.append(int(value))
                    return
            self._values = array("d", self._values)
        self._values.append(float(value))

    def _stored(self) -> tuple[npt.NDArray[Any], Texts]:
        values: npt.NDArray[Any] = np.array(self._values)
        if self.type == NUMBER:
            return values, _NO_TEXTS
        if self.type != TEXT:
            return values.astype(np.int32), _NO_TEXTS
        ordered = sorted((_bytes(text), code) for text, code in self._codes.items())
        places = np.empty(len(ordered), dtype=np.int32)
        places[[code for _, code in ordered]] = np.arange(len(ordered), dtype=np.int32)
        return places[values], Texts.of([text for text, _ in ordered])


def build_columns(metadata: Iterable[Mapping[str, Any]]) -> Columns:
    """The columns of documents, from the metadata of one after the other."""
    growing: dict[str, _Growing] = {}
    rows = 0
    for rows, fields in enumerate(metadata, start=1):
        for name, value in fields.items():
            for one in value if isinstance(value, list | tuple) else (value,):
                if one is not None:
                    type_ = type_of(one)
                    field = growing.get(name) or growing.setdefault(name, _Growing(type_))
                    field.add(rows - 1, one, type_)
    return Columns(rows, {name: field.column(rows) for name, field in growing.items()})


def types_of(segments: Iterable[Columns]) -> dict[str, str]:
    """The type of each field in all segments of an index together."""
    types: dict[str, str] = {}
    for columns in segments:
        for name, column in columns.fields.items():
            types[name] = _common(types.get(name, column.type), column.type)
    return types


def _common(one: str, other: str) -> str:
    if one == other:
        return one
    return LONG if {one, other} == {TEXT, LONG} else MIXED


def type_of(value: object) -> str:
    """The type of one value; what can be no value of a field is compared with nothing."""
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, str):
        return TEXT if len(value) <= LONGEST else LONG
    return NUMBER if isinstance(value, int | float) and is_finite(value) else MIXED


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def write_columns(folder: Path, columns: Columns) -> None:
    """Writes the files of all columns into a folder, and brings them to the disk."""
    files = {name: GrowingArray(folder / f"{name}.npy", dtype) for name, dtype in _ARRAYS.items()}
    sizes = dict.fromkeys(_ARRAYS, 0)
    fields = []
    for name, column in columns.fields.items():
        parts = _parts(column, sizes["text"])
        for file, part in parts.items():
            files[file].append(part.astype(_ARRAYS[file], copy=False))
            sizes[file] += len(part)
        fields.append([name, column.type, {file: len(part) for file, part in parts.items()}])
    for array_ in files.values():
        array_.close()
    with (folder / _FIELDS).open("wb") as stream:
        stream.write(json.dumps(fields).encode())  # in ASCII: a name may be any text
        flush(stream)


def _parts(column: Column, text_before: int) -> dict[str, npt.NDArray[Any]]:
    """What a column adds to which file; texts start after those of the columns before."""
    parts: dict[str, npt.NDArray[Any]] = {}
    if column.documents is not None:
        parts["documents"] = column.documents
    if column.type == NUMBER:
        parts["whole" if column.values.dtype.kind == "i" else "real"] = column.values
    elif column.type in COMPARED:
        parts["codes"] = column.values
    if column.type == TEXT:
        parts["starts"] = column.texts.starts + text_before
        parts["text"] = column.texts.text
    return parts


def read_columns(folder: Path, rows: int) -> Columns:
    """The columns of so many documents, memory-mapped: what is not asked for is not read."""
    with refusing(folder, _FIELDS):
        return Columns(rows, dict(_read(folder, rows)))


def check(folder: Path, rows: int) -> None:
    """Raises a ValueError unless all numbers in the files that are places lie within them."""
    for _, column in _read(folder, rows):
        if column.documents is not None:
            below(column.documents, rows)
        if column.type == TEXT:
            starts = column.texts.starts
            below(starts, len(column.texts.text) + 1)
            require((starts[1:] >= starts[:-1]).all(), "a text ends before it starts")
        if column.type in (TEXT, BOOLEAN):
            below(column.values, len(column.texts) if column.type == TEXT else 2)


def _read(folder: Path, rows: int) -> Iterator[tuple[str, Column]]:
    """The fields with their columns; a ValueError where lengths do not fit each other."""
    arrays = {name: mapped(folder / f"{name}.npy", folder) for name in _ARRAYS}
    for name, dtype in _ARRAYS.items():
        require(arrays[name].ndim == 1 and arrays[name].dtype == dtype, f"{name} is no {dtype}")
    ends = dict.fromkeys(_ARRAYS, 0)
    known = set()
    for name, type_, counts in _read_fields(folder):
        require(name not in known, f"the field {shown(name)} is there twice")
        known.add(name)
        parts = {}
        for file, count in counts.items():
            start, ends[file] = ends[file], ends[file] + count
            require(ends[file] <= len(arrays[file]), f"{file} is shorter than stated")
            parts[file] = arrays[file][start : ends[file]]
        yield name, _column(type_, parts, arrays["text"], rows)
    for name, end in ends.items():
        require(end == len(arrays[name]), f"{name} is longer than stated")


def _column(
    type_: str, parts: Mapping[str, npt.NDArray[Any]], text: npt.NDArray[Any], rows: int
) -> Column:
    stored = [name for name in ("whole", "real", "codes") if name in parts]
    wanted = {TEXT: [["codes"]], BOOLEAN: [["codes"]], NUMBER: [["whole"], ["real"]]}
    require(stored in wanted.get(type_, [[]]), f"{shown(stored)} is not how a {type_} is stored")
    require(("starts" in parts) == (type_ == TEXT), "texts are stored where there are none")
    require("starts" not in parts or len(parts["starts"]), "a list of texts does not start")
    documents = parts.get("documents")
    values = parts[stored[0]] if stored else np.empty(0, dtype=np.int32)
    count = rows if documents is None else len(documents)
    require(not stored or len(values) == count, "not every value has a document")
    texts = Texts(text, parts["starts"]) if type_ == TEXT else _NO_TEXTS
    return Column(type_, documents, values, texts)


def _read_fields(folder: Path) -> Iterator[tuple[str, str, dict[str, int]]]:
    """Names, types, and how much of which file is theirs."""
    try:
        fields = json.loads((folder / _FIELDS).read_bytes())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    require(isinstance(fields, list), "it is no list of fields")
    for field in fields:
        require(isinstance(field, list) and len(field) == 3, "a field has other parts")
        name, type_, counts = field
        require(isinstance(name, str), "a field has no name")
        require(type_ in (*COMPARED, LONG, MIXED), f"there is no type {shown(type_)}")
        require(isinstance(counts, dict) and counts.keys() <= _ARRAYS.keys(), "a file is unknown")
        whole = all(type(count) is int and count >= 0 for count in counts.values())
        require(whole, "a length is no whole number")
        yield name, type_, counts
