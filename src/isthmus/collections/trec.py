"""Judgements and runs as TREC's tools know them, and judgements as BEIR keeps them.

Columns of a run file are separated by white space, which ids may hold too (names of files). A line
with such an id has it in percent-encoding, and Q0% in place of Q0: every tool can read the line,
and `read_run` gives back the ids as they were, also those that hold a % of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np

from isthmus.collections.files import lines
from isthmus.collections.problems import Problems
from isthmus.config.output import whole_file, writing
from isthmus.errors import InputError, OutputError, shown
from isthmus.progress import notice, track
from isthmus.records import Ranking, Run

# Python's int() and float() also take 1_0, digits of other scripts, and words such as infinity.
_WHOLE = re.compile(r"[+-]?[0-9]{1,9}")
_LARGEST_GRADE = 999_999_999
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LARGEST_SCORE = 1e38
_LEAST_STEP = np.float32(1e-30)
_SPACE = re.compile(r"\s")
_TO_ENCODE = re.compile(r"[\s%]")
_ENCODED = "Q0%"  # the second column of lines whose ids are percent-encoded


def read_judgements(
    path: str | Path,
    problems: Problems | None = None,
    known_queries: Container[str] | None = None,
) -> dict[str, dict[str, int]]:
    """Relevance by query id and document id, negative values as they are.

    Takes TREC's four columns (query, iteration, document, relevance) and BEIR's three separated
    by tabs (query, document, relevance), the latter with a header or without.
    """
    file = Path(path)
    problems = (problems or Problems()).reading(str(file))
    judgements: dict[str, dict[str, int]] = {}
    for where, query_id, document_id, relevance in _judgement_lines(file, problems):
        if known_queries is not None and query_id not in known_queries:
            problems.report(
                "unknown query",
                where,
                f"there is no query {query_id!r} in the collection",
                "use the judgements that belong to these queries",
            )
        else:
            add_judgement(judgements, query_id, document_id, relevance, where, problems)
    if not judgements:
        raise InputError(
            f"{str(file)!r} holds no judgement",
            (
                "check the path and the format: lines such as 'q1 0 d1 2', or q1, d1 and 2 "
                "separated by tabs"
            )
            + (f"; {problems.summary()}" if problems.counts else ""),
        )
    return judgements


def read_run(path: str | Path, problems: Problems | None = None) -> Run:
    """The rankings of a run file, ordered by score as evaluators do; named after its first tag."""
    file = Path(path)
    problems = (problems or Problems()).reading(str(file))
    name = ""
    scores: dict[str, dict[str, float]] = {}
    for number, line in lines(file, problems):
        where = f"{file}:{number}"
        columns = line.split()
        if len(columns) != 6:
            problems.report(
                "broken line",
                where,
                f"{len(columns)} columns where six are expected: {line[:60]!r}",
                "write 'query Q0 document rank score tag'",
            )
            continue
        query_id, iteration, document_id, _, score_text, tag = columns
        if iteration == _ENCODED:
            query_id, document_id = unquote(query_id), unquote(document_id)
        score = decimal(score_text)
        if score is None:
            detail = f"the score {shown(score_text)} is not a finite number"
            problems.report("broken line", where, detail, "correct the fifth column")
        elif document_id in scores.setdefault(query_id, {}):
            detail = f"document {document_id!r} is in the ranking of query {query_id!r} twice"
            problems.report("duplicate id", where, detail, "keep its best line only")
        else:
            name = name or tag
            scores[query_id][document_id] = score
    return Run(name, {query: Ranking.sorted(query, found) for query, found in scores.items()})


def write_run(path: str | Path, run: Run) -> None:
    """Writes a run file in which scores strictly decrease, so that every evaluator agrees.

    trec_eval keeps scores in 32 bits and orders equal ones in its own way; a score that is not
    below its predecessor in 32 bits is lowered by the least step. The file appears whole.
    """
    file = Path(path)
    _refuse_other_than_files(file)
    tag = _tag(run.name)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    rankings, encoded = run.rankings.values(), 0
    with whole_file(file) as stream:
        for ranking in track(rankings, f"writing {file}", len(rankings), "queries"):
            for line in _run_lines(ranking, tag):
                stream.write(line)
                encoded += f" {_ENCODED} " in line
    if encoded:
        notice(
            f"{file}: {encoded:,} lines hold ids with white space, in percent-encoding (a%20b) and "
            f"marked by {_ENCODED} in the second column"
        )


class ExistingRun:
    """A run file that is there already, held against what would be written in its place.

    A search that is done again finds what it wrote; any other is refused as soon as it differs.
    """

    def __init__(self, path: str | Path, name: str) -> None:
        self._file = Path(path)
        _refuse_other_than_files(self._file)
        self._tag = _tag(name)
        self._compared = 0

    def __bool__(self) -> bool:
        return self._file.is_file() and self._file.stat().st_size > 0

    def compare(self, rankings: Iterable[Ranking]) -> None:
        """Refuses where the file does not go on with these rankings."""
        expected = "".join(line for one in rankings for line in _run_lines(one, self._tag)).encode()
        with self._file.open("rb") as stream:
            stream.seek(self._compared)
            if stream.read(len(expected)) != expected:
                self._refuse()
        self._compared += len(expected)

    def finish(self) -> None:
        """Refuses where the file goes on after what was compared."""
        if self._compared < self._file.stat().st_size:
            self._refuse()

    def _refuse(self) -> None:
        raise OutputError(
            f"--run {str(self._file)!r} already holds another run",
            "choose another --run, or remove the file to search again",
        )


def _tag(name: str) -> str:
    return "_".join(name.split()) or "isthmus"


def _refuse_other_than_files(file: Path) -> None:
    if file.exists() and not file.is_file():
        raise OutputError(
            f"{str(file)!r} is not a file that can be replaced",
            "name a file, such as run.trec",
        )


def _judgement_lines(file: Path, problems: Problems) -> Iterator[tuple[str, str, str, int]]:
    for number, line in lines(file, problems):
        columns = line.split("\t")  # between which ids may hold spaces
        if len(columns) not in (3, 4):
            columns = line.split()
        if number == 1 and columns[0] in ("query-id", "query_id", "qid"):
            continue
        where = f"{file}:{number}"
        if len(columns) not in (3, 4):
            problems.report(
                "broken line",
                where,
                f"{len(columns)} columns where three (BEIR) or four (TREC) are expected",
                "correct the line (columns separated by tabs, where ids hold spaces)",
            )
            continue
        relevance = columns[-1].strip(" ")
        if not (columns[0].strip() and columns[-2].strip()):
            problems.report("broken line", where, "an id is empty", "correct the line")
            continue
        if not _WHOLE.fullmatch(relevance):
            detail = f"the relevance {shown(columns[-1])} is not a whole number of few digits"
            problems.report("broken line", where, detail, "correct the last column")
            continue
        yield where, columns[0], columns[-2], int(relevance)


def add_judgement(
    judgements: dict[str, dict[str, int]],
    query_id: str,
    document_id: str,
    relevance: int,
    where: str,
    problems: Problems,
) -> None:
    """Adds the relevance of a pair; the first one counts, and another is reported."""
    if judgements.setdefault(query_id, {}).setdefault(document_id, relevance) != relevance:
        problems.report(
            "duplicate judgement",
            where,
            f"query {query_id!r} and document {document_id!r} are judged {relevance}, "
            f"but were judged {judgements[query_id][document_id]} before",
            "remove one of the two lines",
        )


def is_grade(value: object) -> bool:
    """Whether a value that a library has read is a whole number that can be a relevance."""
    return isinstance(value, int | float) and abs(value) <= _LARGEST_GRADE and int(value) == value


def decimal(text: str) -> float | None:
    """The score that a text spells in ASCII digits; None unless it is a finite number."""
    text = text.strip(" ")
    score = float(text) if _DECIMAL.fullmatch(text) else math.inf
    return score if math.isfinite(score) else None


def _run_lines(ranking: Ranking, tag: str) -> Iterator[str]:
    ordered = Ranking.sorted(ranking.query_id, dict(ranking))
    if "" in (ranking.query_id, *ordered.document_ids):
        raise OutputError(
            f"the ranking of query {ranking.query_id!r} has an empty id, which a run file cannot "
            "hold",
            "rename the query or document",
        )
    printed = _strictly_decreasing(ordered)
    for rank, (document_id, score) in enumerate(
        zip(ordered.document_ids, printed, strict=True), start=1
    ):
        ids, iteration = (ranking.query_id, document_id), "Q0"
        if any(map(_SPACE.search, ids)):
            ids, iteration = (_encoded(ids[0]), _encoded(ids[1])), _ENCODED
        yield f"{ids[0]} {iteration} {ids[1]} {rank} {score} {tag}\n"


def _encoded(identifier: str) -> str:
    return _TO_ENCODE.sub(lambda found: quote(found[0]), identifier)


def _strictly_decreasing(ranking: Ranking) -> list[str]:
    scores = np.asarray(ranking.scores, dtype=np.float64)
    if not np.all(np.abs(scores) <= _LARGEST_SCORE):
        raise OutputError(
            f"the scores of query {ranking.query_id!r} are not all finite 32-bit numbers",
            "check what computed the scores",
        )
    narrow = scores.astype(np.float32)
    if not np.all(narrow[1:] < narrow[:-1]):
        for index in range(1, len(narrow)):
            # Never by less than the least step: numbers next to zero have no normal neighbours.
            below = np.nextafter(narrow[index - 1], np.float32(-np.inf))
            highest = min(below, narrow[index - 1] - _LEAST_STEP)
            narrow[index] = min(narrow[index], highest)
    return [str(text) for text in narrow.astype(str)]
