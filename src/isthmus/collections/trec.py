"""Judgements and runs as TREC's tools know them, and judgements as BEIR keeps them."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator
from pathlib import Path

import numpy as np

from isthmus.collections.files import lines
from isthmus.collections.problems import Problems
from isthmus.config.output import whole_file, writing
from isthmus.errors import InputError, OutputError, shown
from isthmus.progress import track
from isthmus.records import Ranking, Run

# Python's int() and float() also take 1_0, digits of other scripts, and words such as infinity.
_WHOLE = re.compile(r"[+-]?[0-9]{1,9}")
_LARGEST_GRADE = 999_999_999
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LARGEST_SCORE = 1e38
_LEAST_STEP = np.float32(1e-30)
_SPACE = re.compile(r"\s")


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
        query_id, _, document_id, _, score_text, tag = columns
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
    check_run_file(file)
    tag = _tag(run.name)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    rankings = run.rankings.values()
    with whole_file(file) as stream:
        for ranking in track(rankings, f"writing {file}", len(rankings), "queries"):
            for line in _run_lines(ranking, tag):
                stream.write(line)


def holds_run(path: str | Path, run: Run, complete: bool = True) -> bool:
    """Whether a file holds this run already; one that holds anything else is refused.

    A run that is not `complete` is the beginning of what the file may hold.
    """
    file, tag = Path(path), _tag(run.name)
    if not file.is_file() or not file.stat().st_size:
        return False
    expected = (line.encode() for one in run.rankings.values() for line in _run_lines(one, tag))
    with file.open("rb") as stream:
        alike = all(stream.read(len(line)) == line for line in expected)
        if alike and not (complete and stream.read(1)):
            return True
    raise OutputError(
        f"--output {str(file)!r} already holds another run",
        "choose another --output, or remove the file to search again",
    )


def _tag(name: str) -> str:
    return "_".join(name.split()) or "isthmus"


def check_run_file(file: Path) -> None:
    """Refuses a folder or device where a run file should be."""
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
    check_ids(ranking)
    printed = _strictly_decreasing(ordered)
    for rank, (document_id, score) in enumerate(
        zip(ordered.document_ids, printed, strict=True), start=1
    ):
        yield f"{ranking.query_id} Q0 {document_id} {rank} {score} {tag}\n"


def check_ids(ranking: Ranking) -> None:
    """Refuses ids that a run file, whose columns are separated by white space, cannot hold."""
    for one in (ranking.query_id, *ranking.document_ids):
        if not one or _SPACE.search(one):
            raise OutputError(
                f"the id {one!r}, in the ranking of query {ranking.query_id!r}, "
                f"{'has white space' if one else 'is empty'}, which a run file cannot hold",
                "rename it: my_notes, say, or my%20notes as in a folder of files",
            )


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
