"""MS MARCO's files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from isthmus.collections.collection import Collection, choose_split
from isthmus.collections.document_checks import screened
from isthmus.collections.files import find_file, fingerprint, plain_name, require_file, tab_lines
from isthmus.collections.formats import collection_format
from isthmus.collections.problems import Problems
from isthmus.collections.query_files import read_queries
from isthmus.collections.trec import read_judgements
from isthmus.errors import InputError
from isthmus.records import Document, Query


@collection_format("msmarco")
class Msmarco(Collection):
    """MS MARCO: collection.tsv, with queries.SPLIT.tsv and qrels.SPLIT.tsv next to it.

    The passages (id, text) or documents (id, address, title, text) of one tsv file.

    Queries and judgements are those in the same folder; a split is what stands between
    "qrels." and ".tsv" in a file's name, and "all" where nothing does.
    """

    def __init__(self, path: str | Path, problems: Problems | None = None) -> None:
        path = Path(path)
        self._problems = problems or Problems()
        if path.is_dir():
            path = find_file(path, "collection.tsv") or path / "collection.tsv"
        require_file(path)
        self.file = path

    def documents(self) -> Iterator[Document]:
        """Every passage or document in the order of the file."""
        problems = self._problems.reading(str(self.file))
        return screened(_documents(self.file, problems), problems, str(self.file))

    def queries(self) -> Iterator[Query]:
        """The queries of all files named queries, judged or not, each once."""
        return iter(self._queries.values())

    def splits(self) -> list[str]:
        """What stands between "qrels." and ".tsv" in the names of files."""
        return sorted(self._beside("qrels"))

    def judgements(self, split: str) -> dict[str, dict[str, int]]:
        """Relevance by query id and document id, as in qrels.SPLIT.tsv."""
        file = choose_split(self._beside("qrels"), split, str(self.file.parent))
        return read_judgements(file, self._problems, known_queries=self._queries)

    def fingerprint(self) -> str:
        """A digest of the bytes of all files of the collection."""
        others = [*self._beside("queries").values(), *self._beside("qrels").values()]
        return fingerprint([self.file, *others])

    @cached_property
    def _queries(self) -> dict[str, Query]:
        files = self._beside("queries")
        if not files:
            raise InputError(
                f"there are no queries next to the passages in {str(self.file.parent)!r}",
                "put queries.tsv or queries.SPLIT.tsv into this folder",
            )
        # queries.dev.small.tsv repeats queries of queries.dev.tsv: an id across files is no error.
        found = [q for file in files.values() for q in read_queries(file, self._problems)]
        return {query.id: query for query in found}

    def _beside(self, kind: str) -> dict[str, Path]:
        files = sorted(self.file.parent.glob(f"{kind}*.tsv*"))
        names = {plain_name(f).removesuffix(".tsv").removeprefix(kind): f for f in files}
        return {name.strip(".") or "all": file for name, file in names.items()}


def _documents(file: Path, problems: Problems) -> Iterator[tuple[str, Document]]:
    for where, columns in tab_lines(file, problems, widths=(2, 4)):
        title = columns[2] if len(columns) == 4 else ""
        yield where, Document(columns[0], columns[-1], title)
