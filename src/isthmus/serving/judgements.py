"""Judgements made on the page: a split of a BEIR folder that `evaluate` and `finetune` read.

Both files are replaced whole and brought to the disk before a judgement is acknowledged: first
queries.jsonl, then qrels/judged.tsv, so that no judgement is ever of an unknown query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Any

import xxhash

from isthmus.collections import open_corpus, read_queries
from isthmus.collections.files import find_file
from isthmus.collections.trec import read_judgements
from isthmus.config.output import only_writer, whole_file, writing
from isthmus.errors import InputError
from isthmus.indexes.manifest import settle_names
from isthmus.progress import track
from isthmus.records import Document

SPLIT = "judged"
_UNFIT = re.compile(r"[\t\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # ends a line or a column


class JudgementFolder:
    """The judged queries of a folder, held by one server at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._queries_file = folder / "queries.jsonl"
        self._file = folder / "qrels" / f"{SPLIT}.tsv"
        self._changing = Lock()
        self._corpus: set[str] | None = None  # ids, read when they are first needed
        self._held = only_writer(folder)
        try:
            with writing(folder):
                self._file.parent.mkdir(parents=True, exist_ok=True)
            self._ids, self._grades = self._read()
        except BaseException:
            self._held.release()
            raise

    def _read(self) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
        """Ids of queries by their texts, and grades by query and document."""
        found = find_file(self.folder, self._queries_file.name)
        if found not in (None, self._queries_file):
            raise InputError(
                f"{str(found)!r} is compressed: no query can be added to it",
                "decompress it, or choose another --judgements folder",
            )
        ids, known = dict[str, str](), set[str]()
        if found is not None:
            for query in read_queries(found):
                ids.setdefault(_plain(query.text), query.id)
                known.add(query.id)
        if not self._file.exists() or self._file.read_text(encoding="utf-8").count("\n") < 2:
            return ids, {}
        return ids, read_judgements(self._file, known_queries=known)

    def add_corpus(self, documents: Iterable[Document], count: int) -> None:
        """Puts the documents beside the judgements, unless a corpus is there already."""
        file = self.folder / "corpus.jsonl"
        if find_file(self.folder, file.name):
            return
        with whole_file(file) as stream:
            for one in track(documents, f"writing {file}", count, "documents"):
                stream.write(_line(one))
        settle_names(self.folder)

    def keep(self, document: Document) -> None:
        """Adds a judged document to the corpus beside the judgements, unless it is there."""
        file = self.folder / "corpus.jsonl"
        if not file.is_file():  # a corpus in another form is left as it is
            return
        with self._changing:
            if self._corpus is None:
                self._corpus = {one.id for one in open_corpus(str(file)).documents()}
            if document.id in self._corpus:
                return
            with file.open(encoding="utf-8") as before, whole_file(file) as stream:
                end = "\n"
                for line in before:
                    stream.write(line)
                    end = line[-1]
                stream.write(("" if end == "\n" else "\n") + _line(document))
            settle_names(self.folder)
            self._corpus.add(document.id)

    def of(self, query: str) -> dict[str, int]:
        """The grades of documents for a query."""
        with self._changing:
            return dict(self._grades.get(self._ids.get(_plain(query), ""), {}))

    def judge(self, query: str, document_id: str, grade: int | None) -> dict[str, int]:
        """The grades of a query after one was given, or taken back (None), for good."""
        query = _plain(query)
        if not query or _UNFIT.search(document_id) or document_id != document_id.strip():
            raise InputError(
                f"the judgement of {document_id!r} for {query!r} cannot be written to a file of "
                "judgements",
                "use a query with words, and an id without tabs, line breaks and outer spaces",
            )
        with self._changing:
            query_id = self._ids.get(query) or xxhash.xxh3_64_hexdigest(query.encode())
            grades = dict(self._grades.get(query_id, {}))
            if grade is None:
                grades.pop(document_id, None)
            else:
                grades[document_id] = grade
            every = {**self._grades, query_id: grades}
            every = {one: found for one, found in every.items() if found}
            if query not in self._ids:
                self._add_query(query_id, query)
                self._ids[query] = query_id
            self._write_grades(every)
            self._grades = every
            return grades

    def close(self) -> None:
        """Lets others write to the folder."""
        self._held.release()

    def _add_query(self, query_id: str, query: str) -> None:
        """Writes the queries that are there, as they are, and one more."""
        there = self._queries_file
        before = there.read_text(encoding="utf-8") if there.exists() else ""
        with whole_file(there) as stream:
            stream.write(before if not before or before.endswith("\n") else f"{before}\n")
            record = {"_id": query_id, "text": query}
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
        settle_names(self.folder)

    def _write_grades(self, every: dict[str, dict[str, int]]) -> None:
        with whole_file(self._file) as stream:
            stream.write("query-id\tcorpus-id\tscore\n")
            for query_id, grades in every.items():
                stream.writelines(f"{query_id}\t{one}\t{grade}\n" for one, grade in grades.items())
        settle_names(self._file.parent)


def _line(one: Document) -> str:
    record: dict[str, Any] = {"_id": one.id, "title": one.title, "text": one.text}
    if one.metadata:
        record["metadata"] = dict(one.metadata)
    return json.dumps(record, ensure_ascii=False) + "\n"


def _plain(query: str) -> str:
    """A query as it is kept: with single spaces."""
    return " ".join(query.split())
