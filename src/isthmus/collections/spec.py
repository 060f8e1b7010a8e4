"""From what the user typed to a corpus: `scheme:location`, or a path that speaks for itself."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from isthmus.collections.collection import Collection, Corpus
from isthmus.collections.files import find_file, plain_name, require_file
from isthmus.collections.formats import FORMATS
from isthmus.collections.formats.folder import conversions, tally, texts_in
from isthmus.collections.problems import Problems
from isthmus.errors import InputError, readable, shown

_RECOGNISED = (
    "a BEIR folder (corpus.jsonl), an MS MARCO folder (collection.tsv), DPR's (psgs_w100.tsv), a "
    "folder of .txt, .md, .rst or "
    ".html files, a data set folder (.parquet, .arrow), a .jsonl or .tsv file (also .gz, .zst)"
)


def open_corpus(spec: str, problems: Problems | None = None) -> Corpus:
    """The corpus that `scheme:location` or a plain path names; nothing is read yet."""
    with readable(Path(spec)):
        scheme, location = _resolve(spec)
        corpus = FORMATS.load(scheme, where=spec).open(location, problems or Problems())
    assert isinstance(corpus, Corpus)
    corpus.spec = spec
    return corpus


def spec_of(given: object) -> str:
    """What a collection was opened as, or the path or name that is given in its place."""
    spec = given.spec if isinstance(given, Corpus) else given
    if not isinstance(spec, str | Path):
        raise InputError(
            f"{shown(given)} of type {type(given).__name__} is no collection",
            "give its path or name, or what isthmus.open_collection returned",
        )
    return str(spec)


def open_collection(spec: str, problems: Problems | None = None) -> Collection:
    """The documents, queries and judgements that a path or name stands for; nothing is read yet.

    Args:
        spec: A BEIR or MS MARCO folder, irds:ID, hf:ORG/NAME, or another form of COLLECTION.
        problems: What to do with bad input, and a count of it; refused if None.

    Returns:
        A collection with `documents()`, `queries()`, `splits()` and `judgements(split)`.

    """
    corpus = open_corpus(spec_of(spec), problems)
    if isinstance(corpus, Collection) and corpus.splits():
        return corpus
    raise InputError(
        f"{spec!r} has documents, but no queries and judgements",
        "put queries.jsonl and qrels/SPLIT.tsv next to corpus.jsonl, as BEIR does, or name "
        "another collection: irds:ID, hf:ORG/NAME",
    )


def _resolve(spec: str) -> tuple[str, str]:
    scheme, colon, location = spec.partition(":")
    if colon and scheme in FORMATS.names():
        return scheme, location
    path = Path(spec)
    if spec and path.exists():
        return _sniff(path), spec
    if colon and re.fullmatch(r"[a-z_]{2,}", scheme):
        FORMATS.check(scheme, where=spec)
    require_file(path, "file or folder")
    raise AssertionError("an existing path was sniffed before")


def _sniff(path: Path) -> str:
    """The format of an existing file or folder, by the names in it."""
    others: Counter[str] = Counter()
    if path.is_dir():
        if find_file(path, "corpus.jsonl"):
            return "beir"
        if find_file(path, "collection.tsv"):
            return "msmarco"
        if next(path.rglob("psgs_w100.tsv*"), None):
            return "dpr"
        if found := find_file(path, "queries.jsonl"):
            raise InputError(
                f"{str(path)!r} holds {found.name} but no corpus.jsonl, which has the documents",
                "copy corpus.jsonl there too, or say what it is: folder:PATH",
            )
        # Texts first: an index or a run that lies among them holds arrow files too.
        if next(texts_in(path, others), None):
            return "folder"
        if any(next(path.rglob(f"*.{ending}"), None) for ending in ("parquet", "arrow")):
            return "hf"
    elif plain_name(path).endswith((".jsonl", ".ndjson")):
        return "jsonl"
    elif plain_name(path).endswith(".tsv"):
        return "msmarco"
    holds = f": it holds {tally(others) or 'nothing'}" if path.is_dir() else ""
    raise InputError(
        f"{str(path)!r} is no corpus that isthmus recognises{holds}",
        conversions(others or [path.suffix.lower()])
        or (
            "say what it is: beir:PATH, dpr:PATH, folder:PATH, hf:PATH, jsonl:PATH or msmarco:PATH"
        ),
        _RECOGNISED,
    )
