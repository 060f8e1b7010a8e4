"""BM25 with several k1 and b on nine judged collections and three of long documents.

    python benchmarks/bm25_defaults.py

Prints nDCG@10 of the test queries for each collection, and the mean over collections. What the long
documents are asked is said in known_items.py.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from known_items import DATA, known_items

import isthmus
from isthmus.collections import Problems, open_queries
from isthmus.indexes.index import Index
from isthmus.indexes.manifest import Bm25Field, updated
from isthmus.records import Run

_CHOICES = (
    (0.9, 0.4), (0.9, 0.6), (1.2, 0.4), (1.2, 0.6), (1.2, 0.75), (1.5, 0.6), (1.5, 0.75),
    (2.0, 0.75),
)  # fmt: skip


def main() -> None:
    """Prints a row per collection, and a column per choice."""
    print("|  | " + " | ".join(f"{k1:g} / {b:g}" for k1, b in _CHOICES) + " |")
    print("|---|" + "--:|" * len(_CHOICES), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        every = {one.name: one for one in sorted((DATA / "collections").iterdir())}
        for name in ("openstax", "newsgroups20", "enwiki_sample"):
            every[f"{name} (long)"] = known_items(name, Path(place) / name)
        for name, collection in every.items():
            rows.append(_ndcg(str(collection), Path(place)))
            _print(name, rows[-1])
    _print("mean", [sum(column) / len(rows) for column in zip(*rows, strict=True)])


def _print(name: str, row: list[float]) -> None:
    print(f"| {name} | " + " | ".join(f"{value:.4f}"[1:] for value in row) + " |", flush=True)


def _ndcg(collection: str, place: Path) -> list[float]:
    """nDCG@10 of each choice; the index is built once, and scored anew for each."""
    skip = {"problems": "skip"}  # two documents of Cranfield have no text
    folder = place / "index"
    isthmus.index(collection, folder, language="english", overwrite=True, settings=skip)
    stored = Index.open(folder)
    field = stored.manifest.fields["bm25"]
    assert isinstance(field, Bm25Field)
    queries = list(open_queries(collection, "test", Problems("skip")))
    ids, texts = [query.id for query in queries], [query.text for query in queries]
    found = []
    for k1, b in _CHOICES:
        scoring = field.settings.model_copy(update={"k1": k1, "b": b})
        scored = field.model_copy(update={"settings": scoring})
        index = Index(folder, updated(stored.manifest, fields={"bm25": scored}))
        rankings = index.search("bm25", texts, 10, ids)
        run = Run("bm25", {ranking.query_id: ranking for ranking in rankings})
        report = isthmus.evaluate(collection, run, measures="nDCG@10", settings=skip)
        found.append(report.means["nDCG@10"]["bm25"])
    return found


if __name__ == "__main__":
    main()
