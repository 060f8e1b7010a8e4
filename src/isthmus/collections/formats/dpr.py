"""DPR's folders."""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from isthmus.collections.collection import Collection, choose_split
from isthmus.collections.document_checks import screened, screened_queries
from isthmus.collections.files import fingerprint, lines, open_bytes, plain_name, require_file
from isthmus.collections.formats import collection_format
from isthmus.collections.problems import Problems
from isthmus.errors import InputError, needing, shown
from isthmus.records import Document, Query

PASSAGES = "psgs_w100.tsv"
_QUESTIONS = (("biencoder-", ".json"), ("", ".qa.csv"))  # those with passages first
_POSITIVES = "positive_ctxs"
_LONGEST_LIST = 2**20  # characters of the answers to one question
_HEAD = 2**20  # bytes of a file that are read at once


class Question(NamedTuple):
    """A question, the strings that answer it, and the ids of passages known to hold one."""

    query: Query
    answers: list[str]
    positives: list[str]


@collection_format("dpr")
class Dpr(Collection):
    """DPR's folders: psgs_w100.tsv with training JSON, and questions with answers (NQ, TriviaQA).

    Questions are read from DPR's training files (`biencoder-nq-train.json`: positives by passage
    id) and from its `nq-test.qa.csv`, compressed or not.

    Passages (id, text, title), and a split for every file of questions.

    A split has the name of its file without `biencoder-`, `.qa` and endings, `nq-train` say; where
    two would have the same, the training file is read. Its judgements are the positives of training
    files; its answers are those of all.
    """

    def __init__(self, folder: str | Path, problems: Problems | None = None) -> None:
        self.folder = Path(folder)
        self._problems = problems or Problems()
        found = sorted(self.folder.rglob(f"{PASSAGES}*"))
        self.file = found[0] if found else self.folder / PASSAGES
        require_file(self.file)
        self._read: dict[str, dict[str, Question]] = {}

    def documents(self) -> Iterator[Document]:
        """Every passage in the order of its file."""
        problems = self._problems.reading(str(self.file))
        return screened(_passages(self.file, problems), problems, str(self.file))

    def queries(self) -> Iterator[Query]:
        """The questions of all splits."""
        for split in self.splits():
            yield from (question.query for question in self._questions(split).values())

    def splits(self) -> list[str]:
        """The names of the files of questions."""
        return sorted(self._files)

    def judgements(self, split: str) -> dict[str, dict[str, int]]:
        """1 for every positive of a question; none where a file has answers alone."""
        return {
            name: dict.fromkeys(question.positives, 1)
            for name, question in self._questions(split).items()
            if question.positives
        }

    def answers(self, split: str) -> dict[str, list[str]]:
        """The strings that answer each question."""
        return {name: question.answers for name, question in self._questions(split).items()}

    def fingerprint(self) -> str:
        """A digest of the bytes of all files of the collection."""
        return fingerprint([self.file, *(file for _, file in sorted(self._files.items()))])

    @cached_property
    def _files(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for beginning, ending in _QUESTIONS:
            for file in sorted(self.folder.rglob(f"{beginning}*{ending}*")):
                name = plain_name(file).removeprefix(beginning)
                if name.endswith(ending) and file.is_file():
                    found.setdefault(name.removesuffix(ending), file)
        return found

    def _questions(self, split: str) -> dict[str, Question]:
        file = choose_split(self._files, split, str(self.folder))
        if split not in self._read:
            problems = self._problems.reading(str(file))
            given = list(_questions(file, split, problems))
            placed = ((where, one.query) for where, one in given)
            kept = screened_queries(placed, problems, str(file))
            self._read[split] = {
                one.query.id: one for _, one in given if kept.get(one.query.id) is one.query
            }
        return self._read[split]


def _passages(file: Path, problems: Problems) -> Iterator[tuple[str, Document]]:
    for number, line in lines(file, problems):
        columns = _columns(line)
        if number == 1 and columns[0] == "id":
            continue
        where = f"{file}:{number}"
        if len(columns) != 3 or not columns[0].strip():
            detail = "an id, a text and a title, separated by tabs, are expected"
            problems.report("broken line", where, detail, "correct the line")
        else:
            yield where, Document(columns[0].strip(), columns[1], columns[2])


def _questions(file: Path, split: str, problems: Problems) -> Iterator[tuple[str, Question]]:
    for number, (where, record) in enumerate(_records(file, problems)):
        text, answers = record.get("question"), record.get("answers")
        passages = record.get(_POSITIVES, [])
        if not isinstance(text, str) or not _are_texts(answers):
            detail = f"no question with a list of answers: {shown(record)}"
            problems.report("broken line", where, detail, "correct the file")
        elif not isinstance(passages, list) or not all(isinstance(one, dict) for one in passages):
            detail = f"{_POSITIVES} is {shown(passages)}, not a list of passages"
            problems.report("broken line", where, detail, "correct the file")
        else:
            ids = (one.get("passage_id", one.get("psg_id")) for one in passages)
            positives = [str(one) for one in ids if isinstance(one, str | int)]
            assert isinstance(answers, list)
            yield where, Question(Query(f"{split}-{number}", text), answers, positives)


def _records(file: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """Mappings with question, answers and, where a file has them, positives."""
    if plain_name(file).endswith(".json"):
        yield from _objects(file, problems)
        return
    for number, line in lines(file, problems):
        columns = _columns(line)
        given = _literal(columns[-1]) if len(columns) == 2 else None
        yield f"{file}:{number}", {"question": columns[0], "answers": given}


def _objects(file: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON array, one after the other; other items are reported."""
    with needing("ijson", extra="dpr", needed_for=str(file)):
        import ijson
    number = 1
    with open_bytes(file) as stream:
        counted = _Counted(stream, problems.line_limit + _HEAD)
        try:
            for record in ijson.items(counted, "item", use_float=True):
                where = f"{file}, record {number:,}"
                if isinstance(record, dict):
                    yield where, record
                else:
                    detail = "a JSON object is expected"
                    problems.report("broken line", where, detail, "correct the file")
                number, counted.taken = number + 1, 0
        except (ijson.JSONError, _TooLongError) as error:
            raise InputError(
                f"{file}, record {number:,}: not a JSON array of objects in UTF-8 up to its end "
                f"({str(error).partition(chr(10))[0]})",
                "download it again, or correct it: [{…}, {…}, …], each object no longer than "
                "line_limit",
            ) from None


class _TooLongError(Exception):
    """No object ends within as many bytes as one may have."""


class _Counted:
    """A stream of which no more than `most` bytes are read since `taken` was set to 0."""

    def __init__(self, stream: BinaryIO, most: int) -> None:
        self._stream = stream
        self._most = most
        self.taken = 0

    def read(self, size: int = -1) -> bytes:
        self.taken += len(found := self._stream.read(min(size, _HEAD) if size >= 0 else _HEAD))
        if self.taken > self._most:
            raise _TooLongError(f"no object ends within {self._most:,} bytes")
        return found


def _columns(line: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter="\t"))
    except csv.Error:  # a field of more than 128 KiB
        return line.split("\t")


def _literal(text: str) -> Any:
    """The list that Python wrote, without running anything; None for any other text."""
    if len(text) > _LONGEST_LIST:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
