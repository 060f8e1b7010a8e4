"""Hugging Face data sets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import xxhash

from isthmus.collections import fields
from isthmus.collections.collection import Collection, choose_split
from isthmus.collections.document_checks import screened, screened_queries
from isthmus.collections.files import fingerprint
from isthmus.collections.formats import collection_format
from isthmus.collections.metadata import Others
from isthmus.collections.problems import Problems
from isthmus.collections.trec import add_judgement, is_grade
from isthmus.errors import InputError, IsthmusError, needing, shown
from isthmus.records import Document, Query

_TITLE = fields.DOCUMENT_TITLE
_TEXT = (*fields.DOCUMENT_TEXT, "passage", "content", "document")
_JUDGEMENT = {
    "query id": ("query-id", "query_id", "qid"),
    "document id": ("corpus-id", "corpus_id", "document_id", "docid"),
    "relevance": ("score", "relevance", "label"),
}


@collection_format("hf")
class Hf(Collection):
    """Hugging Face data sets, by name or as a local folder of parquet, jsonl or arrow files.

    A data set's rows as documents; its id column, or else the row's number, is the id.

    Columns other than id, title and text are metadata.
    A data set with the configurations "corpus", "queries" and "default" or "qrels", as MTEB
    publishes them, is a collection. `location` is NAME, NAME:SPLIT, NAME:CONFIGURATION or
    NAME:CONFIGURATION:SPLIT.
    """

    def __init__(self, location: str, problems: Problems | None = None) -> None:
        with needing("datasets", extra="hf", needed_for=f"hf:{location}"):
            import datasets
        self._library = datasets
        self._problems = problems or Problems()
        self._where = f"hf:{location}"
        self.name, *self._choices = [location] if Path(location).exists() else location.split(":")

    def documents(self) -> Iterator[Document]:
        """Every row of the corpus, streamed."""
        problems = self._problems.reading(self._where)
        return screened(self._documents(problems), problems, self._where)

    def queries(self) -> Iterator[Query]:
        """The rows of the configuration "queries"."""
        problems = self._problems.reading(f"{self._where} queries")
        return iter(screened_queries(self._queries(problems), problems, self._where).values())

    def splits(self) -> list[str]:
        """The splits of the judgements; none where there are no queries."""
        judged = self._judged_configuration
        return self._splits_of(judged) if judged and "queries" in self._configurations else []

    def judgements(self, split: str) -> dict[str, dict[str, int]]:
        """Relevance by query id and document id."""
        choose_split(dict.fromkeys(self.splits()), split, self._where)
        problems = self._problems.reading(f"{self._where} judgements {split}")
        judgements: dict[str, dict[str, int]] = {}
        for number, row in self._rows(self._judged_configuration, split):
            query_id, document_id, relevance = (
                row[self._column(row, names, kind)] for kind, names in _JUDGEMENT.items()
            )
            where = f"{self._where} judgement {number:,}"
            if not all(isinstance(found, str | int) for found in (query_id, document_id)):
                detail = f"{shown(query_id)} and {shown(document_id)} are not both ids"
                problems.report("broken line", where, detail, "correct the data set")
            elif is_grade(relevance):
                pair = str(query_id), str(document_id)
                add_judgement(judgements, *pair, int(relevance), where, problems)
            else:
                detail = f"the relevance {shown(relevance)} is not a whole number of few digits"
                problems.report("broken line", where, detail, "correct the data set")
        return judgements

    def fingerprint(self) -> str:
        """A digest of a folder's bytes or a data set's name and revision, and of a named split."""
        folder = Path(self.name)
        if folder.exists():
            files = (file for file in sorted(folder.rglob("*")) if file.is_file())
            digest = fingerprint(files, root=folder)
            if not self._choices:
                return digest
            return xxhash.xxh3_128_hexdigest("\0".join([digest, *self._corpus]).encode())
        configuration, split = self._corpus
        with self._explained():
            # For a published data set the builder's hash is the commit.
            revision = self._library.load_dataset_builder(self.name, configuration).hash
        return xxhash.xxh3_128_hexdigest(
            f"{self.name}\0{configuration}\0{split}\0{revision}".encode()
        )

    def _queries(self, problems: Problems) -> Iterator[tuple[str, Query]]:
        if "queries" not in self._configurations:
            raise InputError(
                f"the data set {self._where} has no queries: its configurations are "
                f"{', '.join(self._configurations)}",
                "use it as a corpus, or choose a data set with a configuration 'queries'",
            )
        split = _usual_split("queries", self._splits_of("queries"))
        for number, row in self._rows("queries", split):
            where = f"{self._where} query {number:,}"
            query_id = fields.identifier(row, fields.QUERY_ID, where, problems)
            text = fields.text(row, fields.QUERY_TEXT, where, problems)
            if query_id is not None and text is not None:
                yield where, Query(query_id, text)

    def _documents(self, problems: Problems) -> Iterator[tuple[str, Document]]:
        others = Others(self._where, fields.DOCUMENT_ID + _TITLE + _TEXT)
        for number, row in self._rows(*self._corpus):
            if number == 1:
                self._column(row, _TEXT + _TITLE, "text")
            where = f"{self._where} row {number:,}"
            has_id = any(key in row for key in fields.DOCUMENT_ID)
            document_id = (
                fields.identifier(row, fields.DOCUMENT_ID, where, problems)
                if has_id
                else str(number - 1)
            )
            title = fields.text(row, _TITLE, where, problems)
            text = fields.text(row, _TEXT, where, problems)
            if document_id is not None and title is not None and text is not None:
                yield where, Document(document_id, text, title, metadata=others.of(row))
        others.tell()

    @cached_property
    def _saved(self) -> Mapping[str, Any] | None:
        """The splits of a folder that `save_to_disk` wrote; None for any other data set."""
        folder = Path(self.name)
        if not any((folder / file).is_file() for file in ("state.json", "dataset_dict.json")):
            return None
        with self._explained():
            found = self._library.load_from_disk(self.name)
        return found if isinstance(found, self._library.DatasetDict) else {"train": found}

    @cached_property
    def _configurations(self) -> list[str]:
        if self._saved is not None:
            return ["default"]
        with self._explained():
            return _some(self._library.get_dataset_config_names(self.name), "configuration")

    @cached_property
    def _judged_configuration(self) -> str | None:
        return next((name for name in ("qrels", "default") if name in self._configurations), None)

    @cached_property
    def _corpus(self) -> tuple[str, str]:
        """The configuration and the split that hold the documents."""
        known = self._configurations
        wanted = list(self._choices)
        if wanted and wanted[0] in known:
            configuration = wanted.pop(0)
        else:
            preferred = (name for name in ("corpus", "default") if name in known)
            configuration = next(preferred, known[0])
        splits = self._splits_of(configuration)
        if wanted:
            return configuration, choose_split({s: s for s in splits}, wanted[0], self._where)
        return configuration, _usual_split(configuration, splits)

    def _splits_of(self, configuration: str) -> list[str]:
        with self._explained():
            if self._saved is not None:
                return _some(self._saved, "split")
            found = self._library.get_dataset_split_names(self.name, configuration)
            return _some(found, "split")

    def _rows(self, configuration: str | None, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows with their numbers from 1."""
        with self._explained():
            rows = iter(
                self._saved[split]
                if self._saved is not None
                else self._library.load_dataset(
                    self.name, configuration, split=split, streaming=True
                )
            )
        for number in itertools.count(1):
            with self._explained():
                row = next(rows, None)
            if row is None:
                return
            yield number, row

    def _column(self, row: Mapping[str, Any], names: tuple[str, ...], kind: str) -> str:
        for name in names:
            if name in row:
                return name
        raise InputError(
            f"the data set {self._where} has no column for the {kind}: it has {', '.join(row)}",
            "rename the column, or export the rows as jsonl",
            ", ".join(names),
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns the library's refusals, of which there are many kinds, into InputErrors."""
        try:
            yield
        except IsthmusError:
            raise
        except Exception as error:  # pyarrow's own, KeyErrors of files of another shape, …
            raise InputError(
                f"the data set {self._where} cannot be read: {type(error).__name__}: {error}",
                "check the name (ORG/NAME, or a folder of parquet, jsonl or arrow files) and the "
                "network",
            ) from error


def _usual_split(configuration: str, splits: list[str]) -> str:
    """The split named like its configuration, as MTEB has it; else train; else the first."""
    return next((name for name in (configuration, "train") if name in splits), splits[0])


def _some(names: Iterable[str], kind: str) -> list[str]:
    found = list(names)
    if not found:
        raise ValueError(f"it has no {kind}")
    return found
