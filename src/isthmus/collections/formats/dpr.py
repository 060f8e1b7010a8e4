"""DPR's folders: psgs_w100.tsv with training JSON, and questions with answers (NQ, TriviaQA).

Questions are read from DPR's training files (`biencoder-nq-train.json`: positives by passage id),
from its `nq-test.qa.csv`, from NQ-open's jsonl and from TriviaQA's own JSON, compressed or not.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from isthmus.collections.collection import Collection, choose_split
from isthmus.collections.document_checks import screened, screened_queries
from isthmus.collections.fields import json_lines
from isthmus.collections.files import fingerprint, lines, open_bytes, plain_name, require_file
from isthmus.collections.json_arrays import json_array
from isthmus.collections.problems import Problems
from isthmus.errors import InputError, shown
from isthmus.records import Document, Query

PASSAGES = "psgs_w100.tsv"
_ENDINGS = (".json", ".jsonl", ".csv")  # those with passages first
_POSITIVES = "positive_ctxs"
_LONGEST_LIST = 2**20  # characters of the answers to one question
_HEAD = 2**20  # bytes of a file by which it is known
_BLANKS = b" \t\r\n\xef\xbb\xbf"


class Question(NamedTuple):
    """A question, the strings that answer it, and the ids of passages known to hold one."""

    query: Query
    answers: list[str]
    positives: list[str]


class Dpr(Collection):
    """Passages (id, text, title), and a split for every file of questions.

    A split has the name of its file without `biencoder-`, `.qa` and endings, `nq-train` say; where
    two would have the same, the one without passages ends in `-qa`, and further ones in `-qa-2`,
    `-qa-3`. Its judgements are the positives of training files; its answers are those of all.
    JSON files of anything else are left out.
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
        for ending in _ENDINGS:
            for file in sorted(self.folder.rglob(f"*{ending}*")):
                name = plain_name(file)
                if name.endswith(ending) and file.is_file() and not _is_foreign(file):
                    name = name.removesuffix(ending).removesuffix(".qa").removeprefix("biencoder-")
                    further = (f"{name}-qa-{number}" for number in count(2))
                    names = chain([name, f"{name}-qa"], further)
                    found[next(one for one in names if one not in found)] = file
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


def _is_foreign(file: Path) -> bool:
    """Whether a file begins with JSON objects that are no questions: a configuration, say."""
    with suppress(InputError, OSError), open_bytes(file) as stream:
        head = stream.read(_HEAD).lstrip(_BLANKS)
        return head.startswith(b"{") and b'"question"' not in head.lower()
    return False  # reading it says what is wrong


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
        text, answers = record.get("question"), record.get("answers", record.get("answer"))
        name = record.get("id") or f"{split}-{number}"
        passages = record.get(_POSITIVES, [])
        if not isinstance(name, str) or not isinstance(text, str) or not _are_texts(answers):
            detail = f"no question with a list of answers: {shown(record)}"
            problems.report("broken line", where, detail, "correct the file")
        elif not isinstance(passages, list) or not all(isinstance(one, dict) for one in passages):
            detail = f"{_POSITIVES} is {shown(passages)}, not a list of passages"
            problems.report("broken line", where, detail, "correct the file")
        else:
            ids = (one.get("passage_id", one.get("psg_id")) for one in passages)
            positives = [str(one) for one in ids if isinstance(one, str | int)]
            assert isinstance(answers, list)
            yield where, Question(Query(name, text), answers, positives)


def _records(file: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """Mappings with question, answers and, where a file has them, id and positives."""
    name = plain_name(file)
    if name.endswith(".csv"):
        for number, line in lines(file, problems):
            columns = _columns(line)
            given = _literal(columns[-1]) if len(columns) == 2 else None
            yield f"{file}:{number}", {"question": columns[0], "answers": given}
    elif name.endswith(".jsonl"):
        yield from json_lines(file, problems)
    else:
        for where, record in json_array(file, problems):
            yield where, _trivia(record) if "QuestionId" in record else record


def _trivia(record: dict[str, Any]) -> dict[str, Any]:
    """A record of TriviaQA's own files: any alias of the answer counts, as in DPR."""
    answer = record.get("Answer")
    known = answer if isinstance(answer, dict) else {}
    aliases = known.get("Aliases", [])
    answers = [known.get("Value"), *(aliases if isinstance(aliases, list) else [None])]
    unique = list(dict.fromkeys(answers)) if _are_texts(answers) else None
    return {"id": record["QuestionId"], "question": record.get("Question"), "answers": unique}


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
