"""Finds texts that training should not see, or that make its task trivial."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from isthmus.finetuning.mining.candidates import TrainingCorpus
from isthmus.finetuning.pairs import LabelledQueries
from isthmus.progress import track
from isthmus.records import Document

_WORD = re.compile(r"\w+")
_EXAMPLES = 5


@dataclass(frozen=True)
class Leak:
    """A kind of leak, its count, and the first few texts."""

    what: str
    count: int
    examples: tuple[str, ...]


def find_leaks(
    corpus: TrainingCorpus, labelled: LabelledQueries, split: str, wanted: Collection[int]
) -> tuple[list[Leak], dict[int, Document]]:
    """All leaks, and the documents of the wanted rows, from one pass over the documents.

    Texts are equal when their words are, whatever their case and punctuation.
    """
    numbers_of = defaultdict(list)
    for number, query in enumerate(labelled.queries):
        numbers_of[_words(query.text)].append(number)
    elsewhere = _queries_of_other_splits(corpus, split)
    found: dict[str, list[str]] = defaultdict(list)
    for query in labelled.queries:
        for other in elsewhere.get(_words(query.text), ()):
            found[f"training queries that are queries of {other} too"].append(query.text)
    relevant = {row for rows in labelled.positives for row in rows}
    longest = 2 * max(map(len, (*numbers_of, *elsewhere)))
    same_as_a_document: dict[int, bool] = {}  # and whether the document is relevant to it
    documents = {}
    passed = track(corpus.collection.documents(), "look for leaks", len(corpus.tokenised))
    for row, document in enumerate(passed):
        if row in wanted:
            documents[row] = document
        for text in _short_texts(document, longest):
            for number in numbers_of.get(text, ()):
                own = row in labelled.positives[number]
                same_as_a_document[number] = same_as_a_document.get(number, False) or own
            if row in relevant:
                for other in elsewhere.get(text, ()):
                    found[f"relevant documents that are queries of {other}"].append(text)
    for number, own in sorted(same_as_a_document.items()):
        which = "their relevant document" if own else "another document"
        found[f"training queries that are the title or text of {which}"].append(
            labelled.queries[number].text
        )
    return [
        Leak(what, len(texts), tuple(texts[:_EXAMPLES])) for what, texts in sorted(found.items())
    ], documents


def _queries_of_other_splits(corpus: TrainingCorpus, split: str) -> dict[str, list[str]]:
    """The splits, other than this one, in which a text is a judged query."""
    collection = corpus.collection
    judged = {
        other: collection.judgements(other).keys()
        for other in collection.splits()
        if other != split
    }
    found: dict[str, list[str]] = defaultdict(list)
    for query in collection.queries():
        text = _words(query.text)
        found[text] += [
            other for other, ids in judged.items() if query.id in ids and other not in found[text]
        ]
    return {text: others for text, others in found.items() if others}


def _short_texts(document: Document, longest: int) -> Iterator[str]:
    # No query is a text of more than twice its length; normalising every text takes minutes.
    for text in {document.title, document.text}:
        if text and len(text) <= longest:
            yield _words(text)


def _words(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))
