"""BM25 with several k1 and b on nine judged collections and three of long documents.

    python benchmarks/bm25_defaults.py

Prints nDCG@10 of the test queries for each collection, and the mean over collections. The long
documents have no judgements, so queries are made of them (known items): the documents of at least
300 words; the query is the title, where it has three words or more and no other document has it,
and the only relevant document is the one that it was taken from. The index has no titles, and the
words of the query, where they follow each other in the text, are taken out of it. Of encyclopaedia
articles, whose titles are names, the query is the first sentence, taken out of the text.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import isthmus
from isthmus.collections import Problems, open_corpus, open_queries
from isthmus.indexes.bm25 import Bm25Index
from isthmus.indexes.bm25.postings import Source, write_merged
from isthmus.indexes.manifest import stated_manifest
from isthmus.records import Run

_DATA = Path(os.environ.get("ISTHMUS_DATA", Path(__file__).parents[2] / "shared" / "data"))
_CHOICES = (
    (0.9, 0.4), (0.9, 0.6), (1.2, 0.4), (1.2, 0.6), (1.2, 0.75), (1.5, 0.6), (1.5, 0.75),
    (2.0, 0.75),
)  # fmt: skip
_LONG = 300  # words of a long document
_QUERIES = 1500  # known items of a collection, evenly spaced


def main() -> None:
    """Prints a row per collection, and a column per choice."""
    print("|  | " + " | ".join(f"{k1:g} / {b:g}" for k1, b in _CHOICES) + " |")
    print("|---|" + "--:|" * len(_CHOICES), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        known = {"openstax": _title, "newsgroups20": _title, "enwiki_sample": _first_sentence}
        every = {one.name: one for one in sorted((_DATA / "collections").iterdir())}
        for name, query_of in known.items():
            every[f"{name} (long)"] = _known_items(name, query_of, Path(place) / name)
        for name, collection in every.items():
            rows.append(_ndcg(str(collection), Path(place)))
            _print(name, rows[-1])
    _print("mean", [sum(column) / len(rows) for column in zip(*rows, strict=True)])


def _print(name: str, row: list[float]) -> None:
    print(f"| {name} | " + " | ".join(f"{value:.4f}"[1:] for value in row) + " |", flush=True)


def _ndcg(collection: str, place: Path) -> list[float]:
    """nDCG@10 of each choice; texts are read once, and scored anew for each."""
    skip = {"problems": "skip"}  # two documents of Cranfield have no text
    whole = place / "index"
    isthmus.index(collection, whole, language="english", overwrite=True, settings=skip)
    manifest = stated_manifest(whole)
    assert manifest.bm25 is not None
    queries = list(open_queries(collection, "test", Problems("skip")))
    ids, texts = [query.id for query in queries], [query.text for query in queries]
    found = []
    for k1, b in _CHOICES:
        scoring = manifest.bm25.model_copy(update={"k1": k1, "b": b})
        with tempfile.TemporaryDirectory(dir=place) as scored:
            folder = Path(scored)
            write_merged(folder, [Source(whole)], scoring, 2**30)
            for file in whole.iterdir():
                if file.is_file() and not (folder / file.name).exists():
                    (folder / file.name).hardlink_to(file)
            index = Bm25Index(manifest.model_copy(update={"bm25": scoring}), folder)
            rankings = index.search(texts, 10, ids)
        run = Run("bm25", {ranking.query_id: ranking for ranking in rankings})
        report = isthmus.evaluate(collection, run, measures="nDCG@10", settings=skip)
        found.append(report.means["nDCG@10"]["bm25"])
    return found


def _known_items(name: str, query_of: Callable[[str, str], str], folder: Path) -> Path:
    documents = [
        (one.id, query_of(one.title, one.text), one.text)
        for one in open_corpus(str(_DATA / "texts" / f"{name}.jsonl.zst")).documents()
        if len(one.text.split()) >= _LONG
    ]
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


if __name__ == "__main__":
    main()
