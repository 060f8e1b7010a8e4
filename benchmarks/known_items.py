"""Judged collections of long documents that have no judgements: each query is made of a document.

The documents are those of at least 300 words; the query is the title, where it has three words or
more and no other document has it, and the only relevant document is the one that it was taken from.
The index has no titles, and the words of the query, where they follow each other in the text, are
taken out of it. Of encyclopaedia articles, whose titles are names, the query is the first sentence,
taken out of the text.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from isthmus.collections import open_corpus

DATA = Path(os.environ.get("ISTHMUS_DATA", Path(__file__).parents[2] / "shared" / "data"))
_LONG = 300  # words of a long document
_QUERIES = 1500  # known items of a collection, evenly spaced


def known_items(name: str, folder: Path, most: int | None = None) -> Path:
    """A BEIR folder of the long documents of a text, or of the first of them."""
    query_of = _QUERY_OF[name]
    documents = [
        (one.id, query_of(one.title, one.text), one.text)
        for one in open_corpus(str(DATA / "texts" / f"{name}.jsonl.zst")).documents()
        if len(one.text.split()) >= _LONG
    ][:most]
    times = Counter(query.lower() for _, query, _ in documents)
    asked = [
        (i, query)
        for i, query, _ in documents
        if times[query.lower()] == 1 and len(query.split()) > 2
    ]
    asked = asked[:: max(1, len(asked) // _QUERIES)]
    (folder / "qrels").mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w") as file:
        for i, query, text in documents:
            text = re.sub(re.escape(query), " ", text, flags=re.IGNORECASE) if query else text
            file.write(json.dumps({"_id": i, "title": "", "text": text}) + "\n")
    with (folder / "queries.jsonl").open("w") as file:
        file.writelines(json.dumps({"_id": i, "text": query}) + "\n" for i, query in asked)
    rows = [f"{i}\t{i}\t1\n" for i, _ in asked]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    print(f"<!-- {name}: {len(documents):,} documents, {len(asked):,} queries -->", flush=True)
    return folder


def _title(title: str, _: str) -> str:
    return re.sub(r"^(re|fwd?): *", "", title.strip(), flags=re.IGNORECASE)


def _first_sentence(_: str, text: str) -> str:
    return re.split(r"(?<=[.!?])\s", text.strip(), maxsplit=1)[0]


_QUERY_OF: dict[str, Callable[[str, str], str]] = {
    "openstax": _title,
    "newsgroups20": _title,
    "enwiki_sample": _first_sentence,
}
