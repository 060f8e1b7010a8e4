"""Files of scores as they are published: tabs, TREC runs, jsonl; never pickles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.collections import Problems
from isthmus.collections.fields import json_lines
from isthmus.collections.files import lines, plain_name
from isthmus.collections.trec import decimal
from isthmus.errors import InputError, shown

_QUERY = ("qid", "query_id", "query-id", "query")
_DOCUMENT = ("pid", "document_id", "corpus-id", "docid", "doc_id")
_SCORE = ("score", "ce-score")
_PICKLES = (".pkl", ".pickle", ".pt", ".pth")
_FORMS = (
    "query, document and score separated by tabs; a TREC run; jsonl with qid, pid and score, or "
    "with qid and scores {document: score}"
)

Score = tuple[str, str, float]


def read_scores(file: Path, problems: Problems) -> Iterator[Score]:
    """Query, document and score, one after the other; what is broken is reported."""
    name = plain_name(file)
    if name.endswith(_PICKLES):
        raise InputError(
            f"teacher.file: {str(file)!r} is a pickle, which runs code when it is read",
            "if you trust its source, convert it to jsonl outside isthmus: for query, scores in "
            'pickle.load(…).items(): print(json.dumps({"qid": query, "scores": scores}))',
        )
    if name.endswith((".jsonl", ".ndjson")):
        return _from_json(file, problems)
    return _from_text(file, problems)


def _id(value: Any) -> str | None:
    """The id that a text or a whole number is; None for other values."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return None
    return str(value)


def _from_text(file: Path, problems: Problems) -> Iterator[Score]:
    for number, line in lines(file, problems):
        columns = line.split("\t")
        if len(columns) != 3:
            columns = line.split()
        if len(columns) == 6:
            columns = [columns[0], columns[2], columns[4]]
        where = f"{file}:{number}"
        if len(columns) != 3:
            problems.report(
                "broken line",
                where,
                f"{len(columns)} columns where three, or a run's six, are expected: {line[:60]!r}",
                "write query, document and score, separated by tabs",
            )
            continue
        if number == 1 and columns[0] in _QUERY:
            continue
        score = decimal(columns[2])
        if score is None or not _is_score(score):
            _report(columns[2], where, problems)
        else:
            yield columns[0], columns[1], score


def _from_json(file: Path, problems: Problems) -> Iterator[Score]:
    for where, record in json_lines(file, problems):
        yield from _checked(_first(record, _QUERY), _pairs(record), where, problems)


def _pairs(record: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Documents and scores of a line: one, or a mapping."""
    if isinstance(scores := record.get("scores"), dict):
        return list(scores.items())
    return [(_first(record, _DOCUMENT), _first(record, _SCORE))]


def _checked(
    query: Any, pairs: Iterable[tuple[Any, Any]], where: str, problems: Problems
) -> Iterator[Score]:
    query_id = _id(query)
    for document, score in pairs:
        document_id = _id(document)
        if query_id is None or document_id is None:
            detail = f"{shown(query)} and {shown(document)} are not both ids"
            problems.report("broken line", where, detail, f"write {_FORMS}")
        elif isinstance(score, bool) or not isinstance(score, int | float) or not _is_score(score):
            _report(score, where, problems)
        else:
            yield query_id, document_id, float(score)


def _report(score: object, where: str, problems: Problems) -> None:
    detail = f"the score {shown(score)} is not a finite number"
    problems.report("broken line", where, detail, "correct the score")


def _is_score(value: float) -> bool:
    return bool(abs(value) <= float(np.finfo(np.float32).max))  # False for NaN


def _first(record: dict[str, Any], names: Iterable[str]) -> Any:
    return next((record[name] for name in names if name in record), None)
