"""Top-k accuracy by answer string, as DPR counts it for Natural Questions and TriviaQA."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import regex  # type: ignore[import-untyped]

from isthmus.collections import Judged
from isthmus.errors import MismatchError, SettingsError
from isthmus.evaluation.measures import best_first
from isthmus.progress import Bar
from isthmus.records import Run

# A run of letters, numbers and marks is one token; any other visible character is one by itself.
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def contains_answer(text: str, answers: Sequence[str]) -> bool:
    """Whether the tokens of one of the answers stand side by side in the tokens of the text.

    Both are brought to Unicode NFD, split and lower-cased. An answer without a single token is
    never found (DPR's code finds it in every text).
    """
    passage = _tokens(text)
    return any(tokens != "  " and tokens in passage for tokens in map(_tokens, answers))


def answer_texts(runs: Iterable[Run], judged: Judged, depth: int) -> dict[str, str]:
    """The texts, without titles, of all documents among the first `depth` of the runs."""
    wanted = {
        document
        for run in runs
        for query in judged.queries
        if query in run.rankings
        for document in best_first(run.rankings[query], run.name)[:depth]
    }
    assert judged.corpus is not None, "answers are those of a collection"
    found: dict[str, str] = {}
    with Bar("reading the texts of answers", judged.corpus.count(), "documents") as bar:
        for document in judged.corpus.documents():
            if document.id in wanted:
                found[document.id] = document.text
                if len(found) == len(wanted):
                    break
            bar.advance(1)
    return found


def answer_accuracy(
    run: Run,
    answers: Mapping[str, Sequence[str]],
    texts: Mapping[str, str],
    cutoffs: Sequence[int] = (5, 20, 100),
) -> dict[str, dict[str, float]]:
    """1.0 or 0.0 for each query with answers, by `Answer@k`: is one found in the top k texts.

    `texts` holds the passages without titles, as in DPR. A query without results
    scores 0.
    """
    if not cutoffs or min(cutoffs) < 1:
        raise SettingsError(
            f"cutoffs = {list(cutoffs)!r} cannot be used",
            "give whole numbers from 1 on, for example 5, 20 and 100",
        )
    found = {
        query: _first_hit(run, query, answers[query], texts, max(cutoffs)) for query in answers
    }
    return {
        f"Answer@{cutoff}": {
            query: float(rank is not None and rank <= cutoff) for query, rank in found.items()
        }
        for cutoff in cutoffs
    }


def _first_hit(
    run: Run, query: str, answers: Sequence[str], texts: Mapping[str, str], depth: int
) -> int | None:
    """The rank, from 1, of the first text that holds an answer."""
    if query not in run.rankings:
        return None
    for rank, document in enumerate(best_first(run.rankings[query], run.name)[:depth], start=1):
        if document not in texts:
            raise MismatchError(
                f"run {run.name!r}: document {document!r}, retrieved for query {query!r}, is not "
                f"among the {len(texts):,} documents of the corpus",
                "evaluate the run with the corpus that it was retrieved from",
            )
        if contains_answer(texts[document], answers):
            return rank
    return None


@lru_cache(maxsize=10_000)
def _tokens(text: str) -> str:
    """The tokens, each between two spaces, so that a sequence inside another is a substring.

    No token holds a space: the expression above leaves separators out.
    """
    words = (word.lower() for word in _TOKEN.findall(unicodedata.normalize("NFD", text)))
    return f" {' '.join(words)} "
