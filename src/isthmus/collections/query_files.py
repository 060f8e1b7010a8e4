"""Files of queries: jsonl, or an id and a text separated by a tab."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isthmus.collections.document_checks import screened_queries
from isthmus.collections.fields import QUERY_ID, QUERY_TEXT, has_any, identifier, json_lines, text
from isthmus.collections.files import open_bytes, plain_name, tab_lines
from isthmus.collections.problems import Problems
from isthmus.records import Query


def read_queries(path: str | Path, problems: Problems | None = None) -> list[Query]:
    """The queries of a file in its order; a file whose first line is a JSON object is jsonl."""
    file = Path(path)
    problems = (problems or Problems()).reading(str(file))
    queries = (_from_json if _is_json(file) else _from_tabs)(file, problems)
    return list(screened_queries(queries, problems, str(file)).values())


def _is_json(file: Path) -> bool:
    if plain_name(file).endswith((".jsonl", ".json", ".ndjson")):
        return True
    with open_bytes(file) as stream:
        return stream.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")


def _from_json(file: Path, problems: Problems) -> Iterator[tuple[str, Query]]:
    for where, record in json_lines(file, problems):
        query_id = identifier(record, QUERY_ID, where, problems)
        if query_id is None or not has_any(record, QUERY_TEXT, where, problems):
            continue
        content = text(record, QUERY_TEXT, where, problems)
        if content is not None:
            yield where, Query(query_id, content)


def _from_tabs(file: Path, problems: Problems) -> Iterator[tuple[str, Query]]:
    for where, (query_id, content) in tab_lines(file, problems, widths=(2,)):
        yield where, Query(query_id, content)
