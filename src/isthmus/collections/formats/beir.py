"""BEIR folders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from isthmus.collections.collection import Collection, choose_split
from isthmus.collections.files import find_file, fingerprint, plain_name, require_file
from isthmus.collections.formats import collection_format
from isthmus.collections.formats.jsonl import Jsonl
from isthmus.collections.problems import Problems
from isthmus.collections.query_files import read_queries
from isthmus.collections.trec import read_judgements
from isthmus.config.output import whole_folder
from isthmus.records import Document, Query


@collection_format("beir")
class Beir(Collection):
    """BEIR folders: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, compressed or not."""

    def __init__(self, folder: str | Path, problems: Problems | None = None) -> None:
        self.folder = Path(folder)
        self._problems = problems or Problems()
        self._corpus = Jsonl(self._file("corpus.jsonl"), self._problems)

    def documents(self) -> Iterator[Document]:
        """Every document in the order of corpus.jsonl."""
        return self._corpus.documents()

    def queries(self) -> Iterator[Query]:
        """Every query in the order of queries.jsonl, judged or not."""
        return iter(self._queries.values())

    def splits(self) -> list[str]:
        """The names of the files in qrels/."""
        return sorted(self._judgement_files)

    def judgements(self, split: str) -> dict[str, dict[str, int]]:
        """Relevance by query id and document id, as in qrels/SPLIT.tsv."""
        file = choose_split(self._judgement_files, split, str(self.folder))
        return read_judgements(file, self._problems, known_queries=self._queries)

    def fingerprint(self) -> str:
        """A digest of the bytes of all files of the collection."""
        queries = find_file(self.folder, "queries.jsonl")
        others = [queries] if queries else []
        judged = [file for _, file in sorted(self._judgement_files.items())]
        return fingerprint([self._corpus.file, *others, *judged])

    @cached_property
    def _queries(self) -> dict[str, Query]:
        file = self._file("queries.jsonl")
        return {query.id: query for query in read_queries(file, self._problems)}

    @cached_property
    def _judgement_files(self) -> dict[str, Path]:
        files = sorted((self.folder / "qrels").glob("*.tsv*"))
        return {plain_name(file).removesuffix(".tsv"): file for file in files}

    def _file(self, name: str) -> Path:
        file = find_file(self.folder, name) or self.folder / name
        require_file(file)
        return file


def write_beir(collection: Collection, folder: str | Path) -> None:
    """Writes any collection as a BEIR folder, which appears whole or not at all."""
    with whole_folder(Path(folder)) as partial:
        _write_lines(partial / "corpus.jsonl", map(_record, collection.documents()))
        queries = ({"_id": q.id, "text": q.text} for q in collection.queries())
        _write_lines(partial / "queries.jsonl", queries)
        (partial / "qrels").mkdir()
        for split in collection.splits():
            name = split.replace("/", "-")  # splits of ir_datasets may be paths
            with (partial / "qrels" / f"{name}.tsv").open("w", encoding="utf-8") as stream:
                stream.write("query-id\tcorpus-id\tscore\n")
                for query_id, judged in collection.judgements(split).items():
                    stream.writelines(f"{query_id}\t{d}\t{r}\n" for d, r in judged.items())


def _record(document: Document) -> dict[str, Any]:
    found = {"_id": document.id, "title": document.title, "text": document.text}
    return found | ({"metadata": document.metadata} if document.metadata else {})


def _write_lines(file: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with file.open("w", encoding="utf-8") as stream:
        for record in records:
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
